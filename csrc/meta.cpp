// SPDX-License-Identifier: MIT
#include <ATen/TensorUtils.h>

#include <cmath>

#include "checks.h"
#include "ops.h"

// Messages name the public function, the argument, what was expected and what came.
namespace detops {

math::Overlap overlap_kind(const char* op, c10::string_view kind) {
  if (kind == "iou") return math::Overlap::kIoU;
  if (kind == "giou") return math::Overlap::kGIoU;
  if (kind == "diou") return math::Overlap::kDIoU;
  TORCH_CHECK(kind == "ciou", "detops.", op, ": kind must be iou, giou, diou or ciou, got ", kind);
  return math::Overlap::kCIoU;
}

}  // namespace detops

namespace detops::meta {
namespace {

// [N, columns]; columns < 0 means any number.
void check_rows(const char* op, const char* name, const Tensor& t, int64_t columns) {
  DETOPS_CHECK(t.dim() == 2, op, name, " must be [N, ", columns, "], got ", t.sym_sizes());
  TORCH_SYM_CHECK(t.sym_size(1).sym_eq(columns), "detops.", op, ": ", name, " must be [N, ",
                  columns, "], got ", t.sym_sizes());
  check_floating(op, name, t);
}

void check_same_length(const char* op, const char* name, const Tensor& t, const char* other_name,
                       const Tensor& other) {
  TORCH_SYM_CHECK(t.sym_size(0).sym_eq(other.sym_size(0)), "detops.", op, ": ", name,
                  " must have as many rows as ", other_name, " (", other.sym_size(0), "), got ",
                  t.sym_size(0));
}

void check_rois(const char* op, const Tensor& rois, const Tensor& other, const char* other_name) {
  DETOPS_CHECK(rois.dim() == 2, op, "boxes must be [K, 5], got ", rois.sym_sizes());
  TORCH_SYM_CHECK(rois.sym_size(1).sym_eq(5), "detops.", op, ": boxes must be [K, 5], got ",
                  rois.sym_sizes());
  check_floating(op, "boxes", rois);
  check_same_device(op, "boxes", rois, other_name, other);
}

// Far above any use; it bounds the time a RoI can take.
constexpr int64_t kMaxSamplingRatio = 4096;

void check_pooling(const char* op, const c10::SymInt& pooled_height,
                   const c10::SymInt& pooled_width, int64_t sampling_ratio) {
  TORCH_SYM_CHECK(pooled_height.sym_ge(1).sym_and(pooled_width.sym_ge(1)), "detops.", op,
                  ": output_size must be at least 1 x 1, got ", pooled_height, " x ", pooled_width);
  DETOPS_CHECK(sampling_ratio <= kMaxSamplingRatio, op, "sampling_ratio must be at most ",
               kMaxSamplingRatio, ", got ", sampling_ratio);
}

void check_scale(const char* op, double spatial_scale) {
  DETOPS_CHECK(std::isfinite(spatial_scale) && spatial_scale > 0, op,
               "spatial_scale must be positive and finite, got ", spatial_scale);
}

void check_map(const char* op, const char* name, const Tensor& t) {
  DETOPS_CHECK(t.dim() == 4, op, name, " must be [N, C, H, W], got ", t.sym_sizes());
  check_floating(op, name, t);
  TORCH_SYM_CHECK(t.sym_size(2).sym_ge(1).sym_and(t.sym_size(3).sym_ge(1)), "detops.", op, ": ",
                  name, " must have H and W of at least 1, got ", t.sym_sizes());
}

void check_pooled_grad(const char* op, const Tensor& grad, const Tensor& rois,
                       const c10::SymInt& channels, const c10::SymInt& pooled_height,
                       const c10::SymInt& pooled_width) {
  DETOPS_CHECK(grad.dim() == 4, op, "grad must be [K, C, ", pooled_height, ", ", pooled_width,
               "], got ", grad.sym_sizes());
  check_floating(op, "grad", grad);
  check_rois(op, rois, grad, "grad");
  check_pooling(op, pooled_height, pooled_width, 0);
  TORCH_SYM_CHECK(grad.sym_size(0)
                      .sym_eq(rois.sym_size(0))
                      .sym_and(grad.sym_size(1).sym_eq(channels))
                      .sym_and(grad.sym_size(2).sym_eq(pooled_height))
                      .sym_and(grad.sym_size(3).sym_eq(pooled_width)),
                  "detops.", op, ": grad must be [", rois.sym_size(0), ", ", channels, ", ",
                  pooled_height, ", ", pooled_width, "], got ", grad.sym_sizes());
}

Tensor empty_map(const Tensor& like, const c10::SymInt& n, const c10::SymInt& c,
                 const c10::SymInt& h, const c10::SymInt& w) {
  return at::empty_symint({n, c, h, w}, like.options().memory_format(like.suggest_memory_format()));
}

Tensor empty_promoted(const Tensor& like, const Tensor& other) {
  const auto type = at::promote_types(like.scalar_type(), other.scalar_type());
  return at::empty_symint(like.sym_sizes(), like.options().dtype(type));
}

void check_coder(const char* op, const char* name, const Tensor& t, const Tensor& anchors,
                 at::ArrayRef<double> weights) {
  check_floating(op, name, t);
  check_rows(op, "anchors", anchors, 4);
  check_same_device(op, "anchors", anchors, name, t);
  check_same_length(op, "anchors", anchors, name, t);
  DETOPS_CHECK(weights.size() == 4, op, "weights must be 4 numbers, got ", weights.size());
  for (const double w : weights) {
    DETOPS_CHECK(std::isfinite(w) && w > 0, op, "weights must be positive and finite, got ",
                 weights);
  }
}

void check_deltas(const char* op, const Tensor& deltas, const Tensor& anchors,
                  at::ArrayRef<double> weights, double clip) {
  DETOPS_CHECK(deltas.dim() == 2, op, "deltas must be [N, 4k], got ", deltas.sym_sizes());
  TORCH_SYM_CHECK((deltas.sym_size(1) % 4).sym_eq(0), "detops.", op,
                  ": deltas must be [N, 4k], got ", deltas.sym_sizes());
  check_coder(op, "deltas", deltas, anchors, weights);
  DETOPS_CHECK(!std::isnan(clip), op, "clip must be a number, got nan");
}

void check_grad_like(const char* op, const Tensor& grad, const Tensor& like) {
  DETOPS_CHECK(grad.dim() == like.dim(), op, "grad must be ", like.sym_sizes(), ", got ",
               grad.sym_sizes());
  check_floating(op, "grad", grad);
  check_same_device(op, "grad", grad, "the input", like);
  for (int64_t d = 0; d < like.dim(); ++d) {
    TORCH_SYM_CHECK(grad.sym_size(d).sym_eq(like.sym_size(d)), "detops.", op, ": grad must be ",
                    like.sym_sizes(), ", got ", grad.sym_sizes());
  }
}

}  // namespace

void check_nms(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
               double iou_threshold) {
  const char* op = idxs ? "batched_nms" : "nms";
  check_rows(op, "boxes", boxes, 4);
  DETOPS_CHECK(scores.dim() == 1, op, "scores must be [N], got ", scores.sym_sizes());
  check_floating(op, "scores", scores);
  check_same_device(op, "scores", scores, "boxes", boxes);
  check_same_length(op, "scores", scores, "boxes", boxes);
  if (idxs) {
    DETOPS_CHECK(idxs->dim() == 1, op, "idxs must be [N], got ", idxs->sym_sizes());
    DETOPS_CHECK(at::isIntegralType(idxs->scalar_type(), /*includeBool=*/true), op,
                 "idxs must be integers, got ", idxs->scalar_type());
    check_same_device(op, "idxs", *idxs, "boxes", boxes);
    check_same_length(op, "idxs", *idxs, "boxes", boxes);
  }
  DETOPS_CHECK(!std::isnan(iou_threshold), op, "iou_threshold must be a number, got nan");
}

Tensor roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                         c10::SymInt pooled_height, c10::SymInt pooled_width,
                         int64_t sampling_ratio, bool) {
  const char* op = "roi_align";
  check_map(op, "input", input);
  check_rois(op, rois, input, "input");
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  check_scale(op, spatial_scale);
  return empty_map(input, rois.sym_size(0), input.sym_size(1), pooled_height, pooled_width);
}

Tensor roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                          c10::SymInt pooled_height, c10::SymInt pooled_width,
                          c10::SymInt batch_size, c10::SymInt channels, c10::SymInt height,
                          c10::SymInt width, int64_t sampling_ratio, bool) {
  const char* op = "roi_align_backward";
  check_pooled_grad(op, grad, rois, channels, pooled_height, pooled_width);
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  check_scale(op, spatial_scale);
  TORCH_SYM_CHECK(height.sym_ge(1).sym_and(width.sym_ge(1)).sym_and(batch_size.sym_ge(0)),
                  "detops.", op,
                  ": the input's size must be [N, C, H, W] with H and W of at least "
                  "1, got [",
                  batch_size, ", ", channels, ", ", height, ", ", width, "]");
  return empty_map(grad, batch_size, channels, height, width);
}

Tensor multiscale_roi_align_forward(at::TensorList inputs, const Tensor& rois,
                                    at::ArrayRef<double> spatial_scales, c10::SymInt pooled_height,
                                    c10::SymInt pooled_width, int64_t sampling_ratio, bool,
                                    double canonical_scale, int64_t) {
  const char* op = "multiscale_roi_align";
  DETOPS_CHECK(!inputs.empty() && inputs.size() <= kMaxLevels, op, "inputs must hold 1 to ",
               kMaxLevels, " feature maps, got ", inputs.size());
  DETOPS_CHECK(spatial_scales.size() == inputs.size(), op,
               "spatial_scales must have one entry per "
               "feature map (",
               inputs.size(), "), got ", spatial_scales.size());
  const Tensor& first = inputs[0];
  for (const Tensor& input : inputs) {
    check_map(op, "inputs", input);
    DETOPS_CHECK(input.scalar_type() == first.scalar_type(), op, "inputs must share one dtype (",
                 first.scalar_type(), "), got ", input.scalar_type());
    check_same_device(op, "inputs", input, "inputs[0]", first);
    TORCH_SYM_CHECK(input.sym_size(0)
                        .sym_eq(first.sym_size(0))
                        .sym_and(input.sym_size(1).sym_eq(first.sym_size(1))),
                    "detops.", op, ": inputs must agree in N and C with ", first.sym_sizes(),
                    ", got ", input.sym_sizes());
  }
  check_rois(op, rois, first, "inputs");
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  for (const double scale : spatial_scales) check_scale(op, scale);
  DETOPS_CHECK(std::isfinite(canonical_scale) && canonical_scale > 0, op,
               "canonical_scale must be positive and finite, got ", canonical_scale);
  return empty_map(first, rois.sym_size(0), first.sym_size(1), pooled_height, pooled_width);
}

std::vector<Tensor> multiscale_roi_align_backward(
    const Tensor& grad, const Tensor& rois, at::ArrayRef<double> spatial_scales,
    c10::SymInt pooled_height, c10::SymInt pooled_width, c10::SymInt batch_size,
    c10::SymInt channels, c10::SymIntArrayRef heights, c10::SymIntArrayRef widths,
    int64_t sampling_ratio, bool, double canonical_scale, int64_t) {
  const char* op = "multiscale_roi_align_backward";
  check_pooled_grad(op, grad, rois, channels, pooled_height, pooled_width);
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  DETOPS_CHECK(!heights.empty() && heights.size() <= kMaxLevels &&
                   heights.size() == widths.size() && heights.size() == spatial_scales.size(),
               op, "heights, widths and spatial_scales must have one entry per feature map, got ",
               heights.size(), ", ", widths.size(), " and ", spatial_scales.size());
  for (const double scale : spatial_scales) check_scale(op, scale);
  DETOPS_CHECK(std::isfinite(canonical_scale) && canonical_scale > 0, op,
               "canonical_scale must be positive and finite, got ", canonical_scale);
  std::vector<Tensor> grads;
  for (size_t i = 0; i < heights.size(); ++i) {
    grads.push_back(empty_map(grad, batch_size, channels, heights[i], widths[i]));
  }
  return grads;
}

Tensor box_iou_forward(const Tensor& boxes1, const Tensor& boxes2, c10::string_view kind, double) {
  constexpr const char* kNames[] = {"box_iou", "generalized_box_iou", "distance_box_iou",
                                    "complete_box_iou"};
  const char* op = kNames[static_cast<int>(overlap_kind("box_iou_forward", kind))];
  check_rows(op, "boxes1", boxes1, 4);
  check_rows(op, "boxes2", boxes2, 4);
  check_same_device(op, "boxes2", boxes2, "boxes1", boxes1);
  // An IoU is worth more bits than half precision has, whatever the boxes are.
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return at::empty_symint({boxes1.sym_size(0), boxes2.sym_size(0)},
                          boxes1.options().dtype(compute_type(type)));
}

std::tuple<Tensor, Tensor> box_iou_backward(const Tensor& grad, const Tensor& boxes1,
                                            const Tensor& boxes2, c10::string_view kind,
                                            double eps) {
  check_grad_like("box_iou_backward", grad, box_iou_forward(boxes1, boxes2, kind, eps));
  return {at::empty_symint(boxes1.sym_sizes(), boxes1.options()),
          at::empty_symint(boxes2.sym_sizes(), boxes2.options())};
}

std::tuple<Tensor, Tensor> match_boxes(const Tensor& boxes1, const Tensor& boxes2) {
  check_rows("match_boxes", "boxes1", boxes1, 4);
  check_rows("match_boxes", "boxes2", boxes2, 4);
  check_same_device("match_boxes", "boxes2", boxes2, "boxes1", boxes1);
  const auto type = at::promote_types(boxes1.scalar_type(), boxes2.scalar_type());
  return {at::empty_symint({boxes1.sym_size(0)}, boxes1.options().dtype(compute_type(type))),
          at::empty_symint({boxes1.sym_size(0)}, boxes1.options().dtype(at::kLong))};
}

Tensor encode_boxes_forward(const Tensor& boxes, const Tensor& anchors,
                            at::ArrayRef<double> weights) {
  check_rows("encode_boxes", "boxes", boxes, 4);
  check_coder("encode_boxes", "boxes", boxes, anchors, weights);
  return empty_promoted(boxes, anchors);
}

std::tuple<Tensor, Tensor> encode_boxes_backward(const Tensor& grad, const Tensor& boxes,
                                                 const Tensor& anchors,
                                                 at::ArrayRef<double> weights) {
  check_grad_like("encode_boxes_backward", grad, encode_boxes_forward(boxes, anchors, weights));
  return {at::empty_symint(boxes.sym_sizes(), boxes.options()),
          at::empty_symint(anchors.sym_sizes(), anchors.options())};
}

Tensor decode_boxes_forward(const Tensor& deltas, const Tensor& anchors,
                            at::ArrayRef<double> weights, double clip) {
  check_deltas("decode_boxes", deltas, anchors, weights, clip);
  return empty_promoted(deltas, anchors);
}

std::tuple<Tensor, Tensor> decode_boxes_backward(const Tensor& grad, const Tensor& deltas,
                                                 const Tensor& anchors,
                                                 at::ArrayRef<double> weights, double clip) {
  check_grad_like("decode_boxes_backward", grad,
                  decode_boxes_forward(deltas, anchors, weights, clip));
  return {at::empty_symint(deltas.sym_sizes(), deltas.options()),
          at::empty_symint(anchors.sym_sizes(), anchors.options())};
}

}  // namespace detops::meta
