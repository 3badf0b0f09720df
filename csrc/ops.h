// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

#include "math/decay.h"
#include "math/overlap.h"

namespace detops {

using at::Tensor;

// "iou", "giou", "diou" or "ciou"; an error names `op` for any other.
math::Overlap overlap_kind(const char* op, c10::string_view kind);

// "linear" or "gaussian", or "naive" where `naive` says so; an error names `op` for any other.
math::Decay decay_method(const char* op, c10::string_view method, bool naive);

// Checks and output allocation, written once: registered for the Meta device, and called first by
// every backend, so that eager mode, fake tensors and torch.compile raise the same errors.
namespace meta {

using Int = c10::SymInt;
using IntList = c10::SymIntArrayRef;
#include "ops.inl"

// Pyramids of more levels are refused: a level per power of two from 1 to 32,768 is enough.
constexpr int64_t kMaxLevels = 16;

// Ops without a Meta kernel, since their output's size depends on values: the checks stand alone.
void check_nms(const Tensor& boxes,                // [N, columns]: 4, or 5 where boxes are rotated
               const Tensor& scores,               // [N]
               const std::optional<Tensor>& idxs,  // [N] integer
               double iou_threshold, int64_t columns = 4);
void check_soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold, double sigma,
                    double min_score, c10::string_view method);
void check_matrix_nms(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                      double sigma, double min_score, c10::string_view method);
void check_gdh(const Tensor& x);

// The levels lie within the positions [0, count) and cover as many. For tensors on the CPU only:
// values that live on a device are made safe in its kernels.
void check_levels(const char* op, const Tensor& spatial_shapes, const Tensor& level_start_index,
                  int64_t count);

}  // namespace meta

namespace backend {

using Int = int64_t;
using IntList = at::IntArrayRef;

}  // namespace backend

namespace cpu {

using namespace backend;
#include "ops.inl"
#include "ops_sized_by_values.inl"

}  // namespace cpu

namespace cuda {

using namespace backend;
#include "ops.inl"
#include "ops_sized_by_values.inl"

}  // namespace cuda

// The demo ops with their derivatives, in C++: for them microseconds count. See autograd/.
namespace autograd {

Tensor axpy(const Tensor& x, const Tensor& y, double alpha);
Tensor gdh(const Tensor& x);  // [...] -> [numel], a view where x is contiguous
Tensor mlp(const Tensor& input, const Tensor& hidden_weights, const Tensor& hidden_bias,
           const Tensor& output_weights, const Tensor& output_bias);
std::tuple<Tensor, Tensor> lltm_cell(const Tensor& input, const Tensor& weights, const Tensor& bias,
                                     const Tensor& h, const Tensor& c);
std::tuple<Tensor, Tensor, Tensor> lltm(const Tensor& input, const Tensor& weights,
                                        const Tensor& bias, const Tensor& h, const Tensor& c);

}  // namespace autograd

// Compositions of ATen ops: every device, integers too, differentiable as they stand.
namespace composite {

Tensor box_area(const Tensor& boxes, c10::string_view fmt);  // [N, 4] -> [N]
Tensor box_convert(const Tensor& boxes, c10::string_view in_fmt, c10::string_view out_fmt);
Tensor clip_boxes_to_image(const Tensor& boxes, c10::SymInt height, c10::SymInt width);
Tensor remove_small_boxes(const Tensor& boxes, double min_size);  // -> int64[K]

}  // namespace composite

// The dtype that coordinates are computed in: never below float32.
inline at::ScalarType compute_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return at::kDouble;
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
      return at::kFloat;
    default:
      TORCH_CHECK(false, "detops: no kernel takes ", type);
  }
}

// The tensor itself where it has that type: `to` alone would ask the dispatcher.
inline Tensor as_type(const Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type ? t : t.to(type);
}

// One number for all elements, as the gradient of a sum is.
inline bool is_constant(const Tensor& t) {
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) != 1 && t.stride(d) != 0) return false;
  }
  return true;
}

// In the type that ops on features of type `features` compute coordinates in.
inline Tensor wide(const Tensor& t, at::ScalarType features) {
  return as_type(t, compute_type(features)).contiguous();
}

// Undefined where there is none.
inline Tensor wide(const std::optional<Tensor>& t, at::ScalarType features) {
  return t ? wide(*t, features) : Tensor();
}

inline Tensor wide(const Tensor& t) { return wide(t, t.scalar_type()); }

inline bool is_channels_last(const Tensor& t) {
  return t.suggest_memory_format() == at::MemoryFormat::ChannelsLast;
}

}  // namespace detops
