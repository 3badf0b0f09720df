// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../math/half.h"

namespace detops::cpu {

// One axis of a RoI as a sparse rule: output position p is the sum over [begin[p], begin[p + 1]) of
// weight * input[index]. For the backward pass in lanes the same, with the two sides exchanged:
// position `first + p` of the map receives the sum over its bins.
template <typename A>
struct AxisRule {
  const int32_t* begin;
  const int32_t* index;
  const A* weight;
  int64_t first;   // first position of the map that is touched
  int64_t extent;  // and how many
  int64_t pooled;  // bins along this axis

  int64_t taps() const { return begin[pooled]; }  // of a rule that is not transposed
};

// Channels are worked on in blocks of this many. A block of a map is brought into the order
// [position, kRoIChannels], where one position's channels are neighbours.
constexpr int64_t kRoIChannels = 32;

// One RoI on the [H, W, C] map it reads; backward, on the rows [row_begin, row_end) that it adds
// to.
template <typename M, typename P>
struct RoITile {
  AxisRule<accumulate_t<std::remove_const_t<M>>> rows, cols;
  M* map;
  int64_t width, channels;
  P* pooled;  // [bins, C]
  int64_t row_begin, row_end;
};

// One RoI on some channels of a map, in place and number by number: planes, whose `interleaved` is
// 1, or all channels of an [H, W, C] map, which are one plane of `interleaved` channels.
template <typename M, typename P>
struct RoIPlanes {
  AxisRule<accumulate_t<std::remove_const_t<M>>> rows, cols;
  M* map;
  int64_t row_stride, plane_stride, planes, interleaved;
  P* pooled;  // [planes, bins, interleaved]
  int64_t row_begin, row_end;
  accumulate_t<std::remove_const_t<M>>* scratch;  // [touched columns, interleaved]
};

// One RoI, forward or (with transposed rules) backward, on rows of a map in lanes.
template <typename A>
struct RoILanes {
  AxisRule<A> rows, cols;
  A* map;  // [rows, columns, kRoIChannels] from (row_origin, col_origin) on
  int64_t row_origin, col_origin, row_stride;
  A* scratch;  // [pooled rows, touched columns, kRoIChannels]
};

// See roi_align.inl, roi_planes.inl and lanes.inl.
template <typename T>
struct RoIAlignKernels {
  using A = accumulate_t<T>;
  int64_t lanes;  // of a vector
  void (*forward)(const RoITile<const T, T>&);
  void (*backward)(const RoITile<A, const T>&);
  void (*forward_planes)(const RoIPlanes<const T, T>&);
  void (*backward_planes)(const RoIPlanes<A, const T>&);
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
