// SPDX-License-Identifier: MIT
#pragma once

#include "../math/strided.h"
#include "../tensor.h"

namespace detops {

struct SixteenBytes {
  uint64_t bits[2];
};

// A number alone counts as one row of one element.
inline math::Strided strided_of(const Tensor& x) {
  check(x.dim() <= math::kMaxDims, "detops.gdh: x must have at most ", math::kMaxDims,
        " dimensions, got ", x.dim());
  math::Strided s{};
  s.dims = static_cast<int>(std::max<int64_t>(1, x.dim()));
  s.sizes[0] = 1;
  for (int64_t d = 0; d < x.dim(); ++d) {
    s.sizes[d] = x.size(d);
    s.strides[d] = x.stride(d);
  }
  return s;
}

// Calls visit with a value of a type as large as an element of x.
template <typename Visit>
void with_element(const Tensor& x, Visit&& visit) {
  switch (x.element_size()) {
    case 1:
      return visit(uint8_t());
    case 2:
      return visit(uint16_t());
    case 4:
      return visit(uint32_t());
    case 8:
      return visit(uint64_t());
    case 16:
      return visit(SixteenBytes());
    default:
      check(false, "elements of ", x.element_size(), " bytes");
  }
}

}  // namespace detops
