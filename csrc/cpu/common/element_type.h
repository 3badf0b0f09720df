// SPDX-License-Identifier: MIT
#pragma once

#include "../../math/half.h"
#include "../../tensor.h"

namespace detops::cpu {

// Calls run(T{}) with the kernel type T of a dtype.
template <typename Run>
void with_element_type(ScalarType type, Run&& run) {
  switch (type) {
    case kDouble:
      return run(double());
    case kHalf:
      return run(Half());
    case kBFloat16:
      return run(BFloat16());
    case kFloat:
      return run(float());
    default:
      throw_no_kernel(type);
  }
}

// Returns the elements of a tensor. T is the kernel type of its dtype.
template <typename T>
const T* elements(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

template <typename T>
T* mutable_elements(const Tensor& t) {
  return static_cast<T*>(t.mutable_data_ptr());
}

}  // namespace detops::cpu
