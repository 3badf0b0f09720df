// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../math/half.h"
#include "../math/overlap.h"
#include "nms_types.h"

// The inner loops that are compiled once per instruction set, behind one table of function
// pointers. Nothing here knows PyTorch.
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

// Boxes as a structure of arrays, with empty boxes behind the last up to a whole vector.
template <typename T>
struct OverlapBoxes {
  const T *x1, *y1, *x2, *y2, *area, *angle;
  int64_t count;
};
constexpr int64_t kOverlapPadding = 16;

// See box_iou.inl.
template <typename T>
struct OverlapKernels {
  using Row = void(const math::OverlapBox<T>&, const OverlapBoxes<T>&, T eps, T* row);
  Row* row[4];  // by math::Overlap
  void (*best)(const math::OverlapBox<T>&, const OverlapBoxes<T>&, T& best, int64_t& index);
};

// See nms.inl.
template <typename T>
struct NmsKernels {
  int64_t (*flat)(const NmsSegment<T>&, const NmsBoxes<T>& kept);
  void (*grid)(const NmsSegment<T>&, const NmsGrid<T>&, int64_t settled);
  void (*strip)(const NmsSegment<T>&, const NmsGrid<T>&, NmsOpen<T>&);
  bool (*suppressed)(const NmsSegment<T>&, int64_t i, const NmsGrid<T>&, const NmsOpen<T>&,
                     int64_t limit);
};

struct Kernels {
  const char* isa;
  NmsKernels<float> nms_float;
  NmsKernels<double> nms_double;
  OverlapKernels<float> overlap_float;
  OverlapKernels<double> overlap_double;
  RoIAlignKernels<float> roi_align_float;
  RoIAlignKernels<double> roi_align_double;
  RoIAlignKernels<Half> roi_align_half;
  RoIAlignKernels<BFloat16> roi_align_bfloat16;

  const NmsKernels<float>& nms(const float*) const { return nms_float; }
  const NmsKernels<double>& nms(const double*) const { return nms_double; }
  const OverlapKernels<float>& overlap(const float*) const { return overlap_float; }
  const OverlapKernels<double>& overlap(const double*) const { return overlap_double; }
  const RoIAlignKernels<float>& roi_align(const float*) const { return roi_align_float; }
  const RoIAlignKernels<double>& roi_align(const double*) const { return roi_align_double; }
  const RoIAlignKernels<Half>& roi_align(const Half*) const { return roi_align_half; }
  const RoIAlignKernels<BFloat16>& roi_align(const BFloat16*) const { return roi_align_bfloat16; }
};

// The table in use. Chosen on first use from what PyTorch chose (at::get_cpu_capability, which
// honours ATEN_CPU_CAPABILITY); tests choose any that this machine can run.
const Kernels& kernels();
const char* cpu_isa();

// "baseline", "avx2", "avx512", or "auto"; throws std::invalid_argument for any other name and for
// one that this processor cannot run.
void set_cpu_isa(const char* name);

}  // namespace detops::cpu
