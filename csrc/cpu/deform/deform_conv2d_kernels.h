// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../roi/roi_align_kernels.h"

namespace detops::cpu {

// Maps are in blocks of kRoIChannels channels, [pixel, kRoIChannels], with zeros around the image:
// two rows above it, one below, one column on either side.
template <typename A>
using pixel_index_t = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;

// The samples of one kernel point at neighbouring output positions.
template <typename A>
struct DeformPoint {
  int64_t positions;
  const A *offset_y, *offset_x, *mask;  // mask: or nullptr
  const A *window_y, *window_x;         // where each position's window begins
  A y, x;                               // of the point, from there on
  A least, height, width;               // where samples count; see math::deform::sample
};

// Where they lie: the pixel of the first corner, the weights of the four with the mask in them.
// Room for a whole vector at the end.
template <typename A>
struct DeformTaps {
  pixel_index_t<A>* pixel;
  A* weight[4];
};

// Samples of a tile of positions in (some channels of) one block. Map and columns have room for a
// whole vector at the end.
template <typename A>
struct DeformBlock {
  DeformTaps<A> taps;  // [points, stride]
  int64_t points, positions, stride;
  const A* map;
  int64_t row;  // pixels from one row of the map to the next
  int64_t channel, channels;
  A* columns;  // [position, point, column_stride], from the first of the channels on
  int64_t column_stride;
};

// See deform_conv2d.inl.
template <typename A>
struct DeformKernels {
  void (*locate)(const DeformPoint<A>&, const DeformTaps<A>&);
  // Columns become the samples.
  void (*gather)(const DeformBlock<A>&);
  // The gradient in the columns is added to `grad_map`, and its products with the corners' values
  // to `dots`, [4, points, stride]; then the columns become the samples.
  void (*scatter)(const DeformBlock<A>&, A* grad_map, A* dots);
  // From the dots of a point, 4 rows `stride` apart, to the gradients of its place and mask.
  void (*differentiate)(const DeformPoint<A>&, const A* dots, int64_t stride, A* grad_y, A* grad_x,
                        A* grad_mask);
};

// The table for the instruction set in use.
template <typename A>
const DeformKernels<A>& deform_kernels();

}  // namespace detops::cpu
