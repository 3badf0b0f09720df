// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/half.h"
#include "../../math/roi_pool.h"

namespace detops::cpu {

// One RoI on a map of which one position's channels are neighbours.
template <typename T>
struct RoIPoolTile {
  const math::PixelRange *rows, *cols;  // of each bin
  int64_t pooled_height, pooled_width;
  const T* map;  // from (row_origin, col_origin) on
  int64_t row_origin, col_origin, row_stride, col_stride;
  int64_t width;  // of the whole map: an index is y * width + x
  int64_t channels;
  T* pooled;        // [bins, bin_stride]
  int32_t* argmax;  // [bins, bin_stride]
  int64_t bin_stride;
};

// One RoI on planes of a map.
template <typename T>
struct RoIPoolPlanes {
  const math::PixelRange *rows, *cols;  // of each bin
  int64_t pooled_height, pooled_width;
  const T* map;
  int64_t width, plane_stride, channels;
  T* pooled;        // [channels, bins]
  int32_t* argmax;  // [channels, bins]
};

// See roi_pool.inl and lanes.inl.
template <typename T>
struct RoIPoolKernels {
  int64_t lanes;  // of a vector
  void (*forward)(const RoIPoolTile<T>&);
  void (*forward_planes)(const RoIPoolPlanes<T>&);
  void (*indices_to_planes)(const int32_t*, int64_t stride, int64_t channels, int64_t count,
                            int32_t*);
};

// The table for the instruction set in use.
template <typename T>
const RoIPoolKernels<T>& roi_pool_kernels();

}  // namespace detops::cpu
