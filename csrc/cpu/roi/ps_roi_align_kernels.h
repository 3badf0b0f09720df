// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../math/half.h"

namespace detops::cpu {

// What one bin of each RoI of a run reads along one axis: RoI i has the taps [begin[i],
// begin[i + 1]). A tap is a position and its weight along rows; along columns, it is as many
// neighbours as a vector has lanes, from `index` on, with a weight each, 0 for those not read.
template <typename A>
struct PSTaps {
  const int64_t* begin;
  const int32_t* index;
  const A* weight;

  PSTaps from(int64_t i) const { return {begin + i, index, weight}; }
};

// Planes are taken up to this many at a time: the rules are read once for all of them.
constexpr int64_t kPSPlanes = 4;

// One bin of all RoIs, on the planes that this bin reads: one for each channel of the output.
template <typename P, typename T>
struct PSTile {
  PSTaps<accumulate_t<std::remove_const_t<T>>> rows, cols;
  const uint32_t* order;  // [rois] numbers of the RoIs
  int64_t rois;
  P* planes;  // n <= kPSPlanes times [height, width]; any n for forward_positions
  int64_t n, plane_stride, width;
  T* pooled;  // the bin of the first channel of RoI 0
  int64_t roi_stride, channel_stride;
  int64_t first_row = 0;  // of the map, that the planes begin with
  int64_t apart = 1;      // numbers from one position to the next, for forward_positions
};

// See ps_roi_align.inl. The planes are the map's own, or copies that the numbers are summed in.
template <typename T>
struct PSRoIAlignKernels {
  using A = accumulate_t<T>;
  int64_t columns;  // of a tap
  void (*forward)(const PSTile<const T, T>&);
  void (*forward_copy)(const PSTile<const A, T>&);
  void (*forward_positions)(const PSTile<const T, T>&);
  void (*backward)(const PSTile<A, const T>&);
};

// The table for the instruction set in use.
template <typename T>
const PSRoIAlignKernels<T>& ps_roi_align_kernels();

}  // namespace detops::cpu
