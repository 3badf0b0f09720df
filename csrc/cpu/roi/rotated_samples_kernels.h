// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "../../math/half.h"
#include "../../math/roi_align_rotated.h"

namespace detops::cpu {

// Samples of one bin that the kernels below can hold: 16 x 16.
constexpr int64_t kMostSamples = 256;

// One rotated RoI on some channels of a map as they are. Backward, on the positions
// [first_position, first_position + positions) of the map, which begins with them: whole rows.
template <typename M, typename P>
struct RotatedPlanes {
  math::RotatedRoI<accumulate_t<std::remove_const_t<M>>> roi;
  int64_t height, width;
  M* map;
  int64_t channels, channel_stride, position_stride;
  P* pooled;  // a row of bins behind the other
  int64_t pooled_height, pooled_width, pooled_channel_stride, bin_stride;
  int64_t first_position, positions;
};

// See rotated_samples.inl.
template <typename T>
struct RotatedSampleKernels {
  using A = accumulate_t<T>;
  void (*forward)(const RotatedPlanes<const T, T>&);
  void (*backward)(const RotatedPlanes<A, const T>&);  // adds to the map
};

// The table for the instruction set in use.
template <typename T>
const RotatedSampleKernels<T>& rotated_sample_kernels();

}  // namespace detops::cpu
