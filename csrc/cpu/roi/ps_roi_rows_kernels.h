// SPDX-License-Identifier: MIT
#pragma once

#include "ps_roi_align_kernels.h"
#include "roi_align_kernels.h"

namespace detops::cpu {

// Channels of the output that are neighbours in a sum.
constexpr int64_t kPSLanes = 16;

// Row ph of the bins of RoI i reads a row of the map with this weight.
template <typename A>
struct PSReach {
  int32_t roi, ph;
  A weight;
};

// All that reads one row of a channels_last map, for up to kPSLanes channels of the output.
template <typename T>
struct PSRow {
  using A = accumulate_t<T>;
  const PSReach<A>* reaches;
  int64_t count;
  PSTaps<A> cols;  // of bin pw of RoI i: number i * pooled_width + pw, single positions
  const uint32_t* order;
  int64_t pooled_width, bins;
  const T* pooled;      // channels_last; the first channel of RoI 0
  int64_t channels, n;  // of the output, and how many are taken
  int64_t width;
  A* sums;  // scratch, [width, bins, kPSLanes]
  T* row;   // of the map, at the first channel that is written
};

// See ps_roi_rows.inl.
template <typename T>
struct PSRoIRowsKernels {
  void (*backward)(const PSRow<T>&);
};

// The table for the instruction set in use.
template <typename T>
const PSRoIRowsKernels<T>& ps_roi_rows_kernels();

}  // namespace detops::cpu
