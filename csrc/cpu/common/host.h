// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "../../ops.h"
#include "../simd/isa.h"
#include "buffer.h"
#include "element_type.h"

// What host functions begin with.
namespace detops::cpu {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How many items are worth a thread, if so much work is and each of them is `each`.
inline int64_t grain_for(int64_t work, int64_t each) {
  return std::max<int64_t>(1, work / std::max<int64_t>(1, each));
}

// x.contiguous(format). The gradient of a sum is one number, expanded: to write it down takes less
// than a general copy, which takes longer than a small op.
inline Tensor in_layout(const Tensor& x, MemoryFormat format) {
  if (x.numel() <= 1 || !is_constant(x)) return x.contiguous(format);
  Tensor copy = empty(x.sizes(), x.options(), format);
  with_element_type(x.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T value = *static_cast<const T*>(x.const_data_ptr());
    std::fill_n(static_cast<T*>(copy.mutable_data_ptr()), copy.numel(), value);
  });
  return copy;
}

}  // namespace detops::cpu
