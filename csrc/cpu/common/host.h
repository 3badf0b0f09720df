// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "../../ops.h"
#include "../simd/isa.h"
#include "buffer.h"
#include "element_type.h"

// Shared prologue of the host functions.
namespace detops::cpu {

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t round_up(int64_t a, int64_t to) { return divide_up(a, to) * to; }

// Returns the minimum number of items per thread, if `work` is worth a thread and an item costs
// `cost_per_item`.
inline int64_t grain_for(int64_t work, int64_t cost_per_item) {
  return std::max<int64_t>(1, work / std::max<int64_t>(1, cost_per_item));
}

// Copies `from` to `to`. Both have the same size, and `to` has no gaps. A general copy takes longer
// than a small op, unlike these cases: one expanded element, such as the gradient of a sum, and
// contiguous tensors of the same dtype.
inline void assign(const Tensor& to, const Tensor& from) {
  const bool copyable = to.scalar_type() == from.scalar_type() && from.numel() > 0;
  const bool constant = copyable && is_constant(from);
  if (!constant && !(copyable && from.is_contiguous() && to.is_contiguous())) {
    to.copy_(from);
    return;
  }
  with_element_type(from.scalar_type(), [&](auto element) {
    using T = decltype(element);
    const T* values = static_cast<const T*>(from.const_data_ptr());
    T* out = static_cast<T*>(to.mutable_data_ptr());
    constant ? std::fill_n(out, to.numel(), *values) : std::copy_n(values, to.numel(), out);
  });
}

// Returns x.contiguous(format).
inline Tensor to_memory_format(const Tensor& x, MemoryFormat format) {
  if (x.is_contiguous(format)) return x;
  Tensor copy = empty(x.sizes(), x.options(), format);
  assign(copy, x);
  return copy;
}

}  // namespace detops::cpu
