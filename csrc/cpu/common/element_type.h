// SPDX-License-Identifier: MIT
#pragma once

#include "../../dtype.h"

#include "../../math/half.h"

namespace detops::cpu {

// Calls run(T{}) with the kernels' type for a tensor's.
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
      no_kernel(type);
  }
}

}  // namespace detops::cpu
