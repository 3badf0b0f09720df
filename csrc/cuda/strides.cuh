// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace detops::cuda {

// Strides, in elements, of [N, C, H, W] in either layout.
struct Strides {
  int64_t n, c, h, w;
};

__host__ __device__ inline Strides strides_of(bool channels_last, int64_t c, int64_t h, int64_t w) {
  return channels_last ? Strides{c * h * w, 1, w * c, c} : Strides{c * h * w, h * w, w, 1};
}

}  // namespace detops::cuda
