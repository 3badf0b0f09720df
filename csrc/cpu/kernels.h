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

// The parameters of an MLP, vectors of hidden units padded with zeros to whole vectors.
template <typename T>
struct MlpLayers {
  int64_t inputs, hidden, padded, outputs;
  const T* hidden_weights;  // [inputs, padded]
  const T* hidden_bias;     // [padded]
  const T* output_weights;  // [outputs, padded]
  const T* output_bias;     // [outputs]
};

// Likewise; `input` is nullptr where it is not wanted, else [rows, inputs].
template <typename T>
struct MlpGradients {
  T *input, *hidden_weights, *hidden_bias, *output_weights, *output_bias;
};

// See mlp.inl.
template <typename T>
struct MlpKernels {
  void (*forward)(const MlpLayers<T>&, const T* input, int64_t begin, int64_t end, T* hidden,
                  T* output);
  void (*backward)(const MlpLayers<T>&, const T* input, const T* hidden, const T* grad,
                   int64_t begin, int64_t end, const MlpGradients<T>&);
};

// One step of an LLTM; rows are those of the batch.
template <typename T>
struct LltmStep {
  int64_t state;          // H
  int64_t depth;          // H, or 0 where `gates` holds the state's part already
  const T* packed;        // the state's weights
  const T* state_before;  // [B, H]
  const T* cell_before;   // [B, H]
  T* gates;               // [B, 3H] in: the input's part; out: after activation
  T* cell;                // [B, H]
  T* state_after;         // [B, H]
};

template <typename T>
struct LltmBackStep {
  int64_t state;
  const T* packed;       // the state's weights, or nullptr: then grad_state stays
  const T* gates;        // [B, 3H] after activation
  const T* cell;         // [B, H]
  const T* grad_output;  // [B, H]
  T* grad_state;         // [B, H] in: from the step after, or nullptr; out: to the step before
  T* grad_cell;          // [B, H] likewise
  T* grad_gates;         // [B, 3H] before activation
};

// out[r, c] = sum over k of left[r, k] right[k, c], each matrix with the distance of its rows.
template <typename T>
struct SmallProduct {
  int64_t rows, columns, depth;
  const T* left;
  int64_t left_row, left_depth;
  const T* right;
  int64_t right_row;
  T* out;
  int64_t out_row;
};

// out [rows, columns] = [left, more] times right [columns, depth + more_depth] transposed, plus
// bias; all without gaps.
template <typename T>
struct TurnedProduct {
  int64_t rows, columns, depth, more_depth;
  const T* left;  // [rows, depth]
  const T* more;  // [rows, more_depth]
  const T *right, *bias;
  T* out;
  T* scratch;  // [depth + more_depth, kTurnedLanes]
};
constexpr int64_t kTurnedLanes = 16;

// See product.inl.
template <typename T>
struct ProductKernels {
  void (*small)(const SmallProduct<T>&);
  void (*turned)(const TurnedProduct<T>&);
};

// See lltm.inl.
template <typename T>
struct LltmKernels {
  int64_t columns;  // packed weights have room for a multiple of this many states
  void (*pack_forward)(const T* weights, int64_t stride, int64_t state, T* packed);
  void (*pack_backward)(const T* weights, int64_t stride, int64_t state, T* packed);
  void (*forward)(const LltmStep<T>&, int64_t begin, int64_t end);
  void (*backward)(const LltmBackStep<T>&, int64_t begin, int64_t end);
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
  MlpKernels<float> mlp_float;
  MlpKernels<double> mlp_double;
  ProductKernels<float> product;
  LltmKernels<float> lltm_float;
  LltmKernels<double> lltm_double;

  const NmsKernels<float>& nms(const float*) const { return nms_float; }
  const NmsKernels<double>& nms(const double*) const { return nms_double; }
  const OverlapKernels<float>& overlap(const float*) const { return overlap_float; }
  const OverlapKernels<double>& overlap(const double*) const { return overlap_double; }
  const RoIAlignKernels<float>& roi_align(const float*) const { return roi_align_float; }
  const RoIAlignKernels<double>& roi_align(const double*) const { return roi_align_double; }
  const RoIAlignKernels<Half>& roi_align(const Half*) const { return roi_align_half; }
  const RoIAlignKernels<BFloat16>& roi_align(const BFloat16*) const { return roi_align_bfloat16; }
  const MlpKernels<float>& mlp(const float*) const { return mlp_float; }
  const MlpKernels<double>& mlp(const double*) const { return mlp_double; }
  const LltmKernels<float>& lltm(const float*) const { return lltm_float; }
  const LltmKernels<double>& lltm(const double*) const { return lltm_double; }
};

// The table in use. Chosen on first use from what PyTorch chose (at::get_cpu_capability, which
// honours ATEN_CPU_CAPABILITY); tests choose any that this machine can run.
const Kernels& kernels();
const char* cpu_isa();

// "baseline", "avx2", "avx512", or "auto"; throws std::invalid_argument for any other name and for
// one that this processor cannot run.
void set_cpu_isa(const char* name);

}  // namespace detops::cpu
