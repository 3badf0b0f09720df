// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../../math/half.h"

namespace detops::cpu {

// One axis of a RoI as a sparse rule: output position p is the sum over [begin[p], begin[p + 1]) of
// weight * input[index]. For the backward pass the same, with the two sides exchanged: position
// `first + p` of the map receives the sum over its bins.
template <typename A>
struct AxisRule {
  const int32_t* begin;
  const int32_t* index;
  const A* weight;
  int64_t first;   // first position of the map that is touched
  int64_t extent;  // and how many
  int64_t pooled;  // bins along this axis
};

// Channels are worked on in blocks of this many. A block of a map is brought into the order
// [position, kRoIChannels], where one position's channels are neighbours.
constexpr int64_t kRoIChannels = 32;

// One RoI on the [H, W, C] map it reads.
template <typename T>
struct RoITile {
  AxisRule<accumulate_t<T>> rows, cols;
  const T* map;
  int64_t width, channels;
  T* pooled;  // [bins, C]
};

// One RoI, forward or (with transposed rules) backward, on rows of a map in lanes.
template <typename A>
struct RoILanes {
  AxisRule<A> rows, cols;
  A* map;  // [rows, columns, kRoIChannels] from (row_origin, col_origin) on
  int64_t row_origin, col_origin, row_stride;
  A* scratch;  // [pooled rows, touched columns, kRoIChannels]
};

// See roi_align.inl and transpose.inl.
template <typename T>
struct RoIAlignKernels {
  using A = accumulate_t<T>;
  void (*forward)(const RoITile<T>&);
  void (*forward_lanes)(const RoILanes<A>&, A* pooled);  // [bins, kRoIChannels]
  void (*backward_lanes)(const RoILanes<A>&, const A* pooled);
  void (*planes_to_lanes)(const T*, int64_t stride, int64_t channels, int64_t count, A*);
  void (*lanes_to_planes)(const A*, int64_t stride, int64_t channels, int64_t count, T*);
  void (*rows_to_lanes)(const T*, int64_t stride, int64_t channels, int64_t count, A*);
  void (*lanes_to_rows)(const A*, int64_t stride, int64_t channels, int64_t count, T*);
};

// The table for the instruction set in use.
template <typename T>
const RoIAlignKernels<T>& roi_align_kernels();

}  // namespace detops::cpu
