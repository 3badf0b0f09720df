// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../math/half.h"
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

// One RoI on the map it reads; channels [channel_begin, channel_end) of `channels`.
template <typename T>
struct RoITile {
  using A = accumulate_t<T>;
  AxisRule<A> rows, cols;
  int64_t channels, channel_begin, channel_end;
  int64_t height, width;
  const T* map;  // [H, W, C] or [C, H, W]
  T* pooled;     // [bins, C] or [C, bins]
  A* scratch;    // [roi_scratch(...)]
};

template <typename A>
struct RoIGradTile {
  AxisRule<A> rows, cols;  // transposed
  int64_t channels, channel_begin, channel_end;
  int64_t height, width;
  A* map;           // [H, W, C] or [C, H, W], added to
  const A* pooled;  // [bins, C] or [C, bins]
  A* scratch;       // [roi_grad_scratch(...)]
};

constexpr int64_t kRoIPadding = 16;
constexpr int64_t roi_scratch(int64_t width) { return width + kRoIPadding; }
constexpr int64_t roi_grad_scratch(int64_t pooled_height, int64_t width) {
  return pooled_height * (width + kRoIPadding);
}

template <typename T>
struct RoIAlignKernels {
  void (*forward)(const RoITile<T>&);  // [C, H, W]
  void (*forward_channels_last)(const RoITile<T>&);
};

template <typename A>
struct RoIAlignGradKernels {
  void (*backward)(const RoIGradTile<A>&);
  void (*backward_channels_last)(const RoIGradTile<A>&);
};

// See nms.inl.
template <typename T>
struct NmsKernels {
  int64_t (*flat)(const NmsSegment<T>&, const NmsBoxes<T>& kept);
  void (*grid)(const NmsSegment<T>&, const NmsGrid<T>&, int64_t settled);
};

struct Kernels {
  const char* isa;
  NmsKernels<float> nms_float;
  NmsKernels<double> nms_double;
  RoIAlignKernels<float> roi_align_float;
  RoIAlignKernels<double> roi_align_double;
  RoIAlignKernels<Half> roi_align_half;
  RoIAlignKernels<BFloat16> roi_align_bfloat16;
  RoIAlignGradKernels<float> roi_align_grad_float;
  RoIAlignGradKernels<double> roi_align_grad_double;

  const NmsKernels<float>& nms(const float*) const { return nms_float; }
  const NmsKernels<double>& nms(const double*) const { return nms_double; }
  const RoIAlignKernels<float>& roi_align(const float*) const { return roi_align_float; }
  const RoIAlignKernels<double>& roi_align(const double*) const { return roi_align_double; }
  const RoIAlignKernels<Half>& roi_align(const Half*) const { return roi_align_half; }
  const RoIAlignKernels<BFloat16>& roi_align(const BFloat16*) const { return roi_align_bfloat16; }
  const RoIAlignGradKernels<float>& roi_align_grad(const float*) const {
    return roi_align_grad_float;
  }
  const RoIAlignGradKernels<double>& roi_align_grad(const double*) const {
    return roi_align_grad_double;
  }
};

// The table in use. Chosen on first use from what PyTorch chose (at::get_cpu_capability, which
// honours ATEN_CPU_CAPABILITY); tests choose any that this machine can run.
const Kernels& kernels();
const char* cpu_isa();

// "baseline", "avx2", "avx512", or "auto"; throws std::invalid_argument for any other name and for
// one that this processor cannot run.
void set_cpu_isa(const char* name);

}  // namespace detops::cpu
