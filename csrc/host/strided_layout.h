// SPDX-License-Identifier: MIT
#pragma once

#include "../math/strided.h"
#include "../tensor.h"

namespace detops {

struct SixteenBytes {
  uint64_t bits[2];
};

// Returns the sizes and strides of x with at least two dimensions: a vector becomes one row.
inline math::Strided strided_layout(const Tensor& x) {
  check(x.dim() <= math::kMaxDims, "detops.gdh: x must have at most ", math::kMaxDims,
        " dimensions, got ", x.dim());
  math::Strided s{{1, 1}, {}, static_cast<int>(std::max<int64_t>(2, x.dim()))};
  for (int64_t d = 0, first = s.dims - x.dim(); d < x.dim(); ++d) {
    s.sizes[first + d] = x.size(d);
    s.strides[first + d] = x.stride(d);
  }
  return s;
}

// Calls visit with a value of a type as large as an element of x.
template <typename Visit>
void with_element(const Tensor& x, Visit&& visit) {
  if (x.element_size() == 1) return visit(uint8_t());
  if (x.element_size() == 2) return visit(uint16_t());
  if (x.element_size() == 4) return visit(uint32_t());
  if (x.element_size() == 8) return visit(uint64_t());
  check(x.element_size() == sizeof(SixteenBytes), "unsupported element size of ", x.element_size(),
        " bytes");
  visit(SixteenBytes());
}

}  // namespace detops
