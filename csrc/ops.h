// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/ATen.h>

#include <tuple>
#include <vector>

#include "math/overlap.h"

namespace detops {

using at::Tensor;

// "iou", "giou", "diou" or "ciou"; an error names `op` for any other.
math::Overlap overlap_kind(const char* op, c10::string_view kind);

// Checks and output allocation, written once: registered for the Meta device, and called first by
// every backend, so that eager mode, fake tensors and torch.compile raise the same errors.
namespace meta {

// Pyramids of more levels are refused: a level per power of two from 1 to 32,768 is enough.
constexpr int64_t kMaxLevels = 16;

// nms has no Meta kernel, since its output size depends on values; its checks stand alone.
void check_nms(const Tensor& boxes,                // [N, 4]
               const Tensor& scores,               // [N]
               const std::optional<Tensor>& idxs,  // [N] integer
               double iou_threshold);

void check_gdh(const Tensor& x);

Tensor roi_align_forward(const Tensor& input,  // [N, C, H, W]
                         const Tensor& rois,   // [K, 5] batch index, x1, y1, x2, y2
                         double spatial_scale, c10::SymInt pooled_height, c10::SymInt pooled_width,
                         int64_t sampling_ratio, bool aligned);  // -> [K, C, ph, pw]

Tensor roi_align_backward(const Tensor& grad,  // [K, C, ph, pw]
                          const Tensor& rois,  // [K, 5]
                          double spatial_scale, c10::SymInt pooled_height, c10::SymInt pooled_width,
                          c10::SymInt batch_size, c10::SymInt channels, c10::SymInt height,
                          c10::SymInt width, int64_t sampling_ratio,
                          bool aligned);  // -> [N, C, H, W]

Tensor multiscale_roi_align_forward(at::TensorList inputs,  // L times [N, C, H_l, W_l]
                                    const Tensor& rois,     // [K, 5]
                                    at::ArrayRef<double> spatial_scales, c10::SymInt pooled_height,
                                    c10::SymInt pooled_width, int64_t sampling_ratio, bool aligned,
                                    double canonical_scale, int64_t canonical_level);

std::vector<Tensor> multiscale_roi_align_backward(
    const Tensor& grad, const Tensor& rois, at::ArrayRef<double> spatial_scales,
    c10::SymInt pooled_height, c10::SymInt pooled_width, c10::SymInt batch_size,
    c10::SymInt channels, c10::SymIntArrayRef heights, c10::SymIntArrayRef widths,
    int64_t sampling_ratio, bool aligned, double canonical_scale, int64_t canonical_level);

}  // namespace meta

// One declaration per op, for both backends; shapes as above.
#define DETOPS_DECLARE_SHARED                                                                   \
  Tensor box_iou_forward(const Tensor& boxes1, /* [N, 4] */                                     \
                         const Tensor& boxes2, /* [M, 4] -> [N, M] */                           \
                         c10::string_view kind, double eps);                                    \
  std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, /* [N, M] */                  \
                                              const Tensor& boxes1, const Tensor& boxes2,       \
                                              c10::string_view kind, double eps);               \
  std::tuple<Tensor, Tensor> match_boxes(const Tensor& boxes1, /* [N, 4] */                     \
                                         const Tensor& boxes2  /* [M, 4] */                     \
  );                                                 /* -> best IoU [N], its index int64[N] */  \
  Tensor encode_boxes_forward(const Tensor& boxes,   /* [N, 4] */                               \
                              const Tensor& anchors, /* [N, 4] */                               \
                              at::ArrayRef<double> weights);                                    \
  std::tuple<Tensor, Tensor> encode_boxes_backward(const Tensor& grad, /* [N, 4] */             \
                                                   const Tensor& boxes, const Tensor& anchors,  \
                                                   at::ArrayRef<double> weights);               \
  Tensor decode_boxes_forward(const Tensor& deltas,                       /* [N, 4k] */         \
                              const Tensor& anchors,                      /* [N, 4] */          \
                              at::ArrayRef<double> weights, double clip); /* -> [N, 4k] */      \
  std::tuple<Tensor, Tensor> decode_boxes_backward(const Tensor& grad,    /* [N, 4k] */         \
                                                   const Tensor& deltas, const Tensor& anchors, \
                                                   at::ArrayRef<double> weights, double clip);

#define DETOPS_DECLARE_BACKEND                                                                    \
  DETOPS_DECLARE_SHARED                                                                           \
  Tensor nms(const Tensor& boxes, const Tensor& scores, double iou_threshold); /* -> int64[K] */  \
  Tensor batched_nms(const Tensor& boxes, const Tensor& scores, const Tensor& idxs,               \
                     double iou_threshold);                                                       \
  Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,         \
                           int64_t pooled_height, int64_t pooled_width, int64_t sampling_ratio,   \
                           bool aligned);                                                         \
  Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,         \
                            int64_t pooled_height, int64_t pooled_width, int64_t batch_size,      \
                            int64_t channels, int64_t height, int64_t width,                      \
                            int64_t sampling_ratio, bool aligned);                                \
  Tensor multiscale_roi_align_forward(at::TensorList inputs, const Tensor& rois,                  \
                                      at::ArrayRef<double> spatial_scales, int64_t pooled_height, \
                                      int64_t pooled_width, int64_t sampling_ratio, bool aligned, \
                                      double canonical_scale, int64_t canonical_level);           \
  std::vector<Tensor> multiscale_roi_align_backward(                                              \
      const Tensor& grad, const Tensor& rois, at::ArrayRef<double> spatial_scales,                \
      int64_t pooled_height, int64_t pooled_width, int64_t batch_size, int64_t channels,          \
      at::IntArrayRef heights, at::IntArrayRef widths, int64_t sampling_ratio, bool aligned,      \
      double canonical_scale, int64_t canonical_level);

// The demo ops. B rows, I inputs, H hidden units or states, O outputs, T steps.
#define DETOPS_DECLARE_DEMO                                                                        \
  Tensor axpy_forward(const Tensor& x, const Tensor& y, double alpha);                             \
  std::tuple<Tensor, Tensor> axpy_backward(const Tensor& grad, double alpha);                      \
  Tensor gdh_forward(const Tensor& x);                                 /* -> [numel], a copy */    \
  std::tuple<Tensor, Tensor> mlp_forward(const Tensor& input,          /* [B, I] */                \
                                         const Tensor& hidden_weights, /* [H, I] */                \
                                         const Tensor& hidden_bias,    /* [1, H] */                \
                                         const Tensor& output_weights, /* [O, H] */                \
                                         const Tensor& output_bias     /* [1, O] */                \
  ); /* -> output [B, O], hidden [B, H] after relu */                                              \
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> mlp_backward(                                 \
      const Tensor& grad, /* [B, O] */                                                             \
      const Tensor& input, const Tensor& hidden, const Tensor& hidden_weights,                     \
      const Tensor& output_weights, bool input_wanted);                                            \
  std::tuple<Tensor, Tensor, Tensor> lltm_forward(const Tensor& input,   /* [T, B, I] or [B, I] */ \
                                                  const Tensor& weights, /* [3H, H + I] */         \
                                                  const Tensor& bias,    /* [3H] */                \
                                                  const Tensor& h,       /* [B, H] */              \
                                                  const Tensor& c        /* [B, H] */              \
  ); /* -> states and cells [T, B, H], gates [T, B, 3H]; without T for one step */                 \
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> lltm_backward(                                \
      const Tensor& grad_output,           /* [T, B, H] */                                         \
      const std::optional<Tensor>& grad_h, /* [B, H], added to that of the last state */           \
      const Tensor& grad_c,                /* [B, H], of the last cell */                          \
      const Tensor& input, const Tensor& weights, const Tensor& h, const Tensor& c,                \
      const Tensor& output, const Tensor& cells, const Tensor& gates, bool input_wanted,           \
      bool h_wanted);

namespace meta {
DETOPS_DECLARE_SHARED
DETOPS_DECLARE_DEMO
}  // namespace meta
namespace cpu {
DETOPS_DECLARE_BACKEND
DETOPS_DECLARE_DEMO
}  // namespace cpu
namespace cuda {
DETOPS_DECLARE_BACKEND
DETOPS_DECLARE_DEMO
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

// Compositions of ATen ops: every device, every dtype, differentiable as they stand.
namespace composite {

Tensor box_area(const Tensor& boxes);  // [N, 4] -> [N]
Tensor box_convert(const Tensor& boxes, c10::string_view in_fmt, c10::string_view out_fmt);
Tensor clip_boxes_to_image(const Tensor& boxes, c10::SymInt height, c10::SymInt width);
Tensor remove_small_boxes(const Tensor& boxes, double min_size);  // -> int64[K]

}  // namespace composite

// The dtype that coordinates are computed in: never below float32.
inline at::ScalarType compute_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// The tensor itself where it has that type: `to` alone would ask the dispatcher.
inline Tensor as_type(const Tensor& t, at::ScalarType type) {
  return t.scalar_type() == type ? t : t.to(type);
}

inline Tensor wide(const Tensor& t) {
  return as_type(t, compute_type(t.scalar_type())).contiguous();
}

}  // namespace detops
