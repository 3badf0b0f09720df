// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

constexpr int kMaxDims = 64;  // the limit in PyTorch

// The shape and strides of a tensor, in elements.
struct Strided {
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
  int dims;
};

// Returns the storage offset of the element with row-major index `index`.
DETOPS_HD int64_t element_offset(const Strided& s, int64_t index) {
  int64_t offset = 0;
  for (int d = s.dims - 1; d >= 0; --d) {
    const int64_t rest = index / s.sizes[d];
    offset += (index - rest * s.sizes[d]) * s.strides[d];
    index = rest;
  }
  return offset;
}

}  // namespace detops::math
