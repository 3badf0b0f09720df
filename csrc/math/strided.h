// SPDX-License-Identifier: MIT
#pragma once

#include "host_device.h"

namespace detops::math {

constexpr int kMaxDims = 64;  // PyTorch's own limit

// The shape of a tensor and how far apart, in elements, neighbours along each dimension lie.
struct Strided {
  int64_t sizes[kMaxDims];
  int64_t strides[kMaxDims];
  int dims;
};

// Where the element number `index`, counted row by row, is stored.
DETOPS_HD int64_t offset_of(const Strided& s, int64_t index) {
  int64_t offset = 0;
  for (int d = s.dims - 1; d >= 0; --d) {
    const int64_t rest = index / s.sizes[d];
    offset += (index - rest * s.sizes[d]) * s.strides[d];
    index = rest;
  }
  return offset;
}

}  // namespace detops::math
