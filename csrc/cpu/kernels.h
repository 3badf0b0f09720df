// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "../math/half.h"

// The inner loops that are compiled once per instruction set, behind one table of function
// pointers. Nothing here knows PyTorch.
namespace detops::cpu {

// Boxes of one class in the order of selection, as a structure of arrays.
template <typename T>
struct NmsSegment {
  const T* x1;  // [count]
  const T* y1;
  const T* x2;
  const T* y2;
  int64_t count;
  double threshold;  // not NaN
  uint8_t* keep;     // [count], out: 1 for a box that no kept box before it suppresses
  T* scratch;        // [nms_scratch(count)]
};

// Kept boxes are read a few vectors at a time: room for that behind the last.
constexpr int64_t kNmsPadding = 64;
constexpr int64_t nms_scratch(int64_t count) { return 5 * (count + kNmsPadding); }

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

struct Kernels {
  const char* isa;
  void (*nms_float)(const NmsSegment<float>&);
  void (*nms_double)(const NmsSegment<double>&);
  RoIAlignKernels<float> roi_align_float;
  RoIAlignKernels<double> roi_align_double;
  RoIAlignKernels<Half> roi_align_half;
  RoIAlignKernels<BFloat16> roi_align_bfloat16;
  RoIAlignGradKernels<float> roi_align_grad_float;
  RoIAlignGradKernels<double> roi_align_grad_double;

  void nms(const NmsSegment<float>& s) const { nms_float(s); }
  void nms(const NmsSegment<double>& s) const { nms_double(s); }
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
