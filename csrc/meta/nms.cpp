// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops {

math::Decay decay_method(const char* op, c10::string_view method, bool naive) {
  if (method == "linear") return math::Decay::kLinear;
  if (method == "gaussian") return math::Decay::kGaussian;
  TORCH_CHECK(naive && method == "naive", "detops.", op, ": method must be ",
              naive ? "linear, gaussian or naive" : "linear or gaussian", ", got ", method);
  return math::Decay::kNaive;
}

}  // namespace detops

namespace detops::meta {
namespace {

void check_scored_boxes(const char* op, const Tensor& boxes, int64_t columns, const Tensor& scores,
                        const std::optional<Tensor>& idxs) {
  check_rows(op, "boxes", boxes, columns);
  DETOPS_CHECK(scores.dim() == 1, op, "scores must be [N], got ", scores.sym_sizes());
  check_floating(op, "scores", scores);
  check_same_device(op, "scores", scores, "boxes", boxes);
  check_same_length(op, "scores", scores, "boxes", boxes);
  if (idxs) {
    DETOPS_CHECK(idxs->dim() == 1, op, "idxs must be [N], got ", idxs->sym_sizes());
    DETOPS_CHECK(is_discrete(idxs->scalar_type()), op, "idxs must be integers, got ",
                 idxs->scalar_type());
    check_same_device(op, "idxs", *idxs, "boxes", boxes);
    check_same_length(op, "idxs", *idxs, "boxes", boxes);
  }
}

void check_number(const char* op, const char* name, double value) {
  DETOPS_CHECK(!std::isnan(value), op, name, " must be a number, got nan");
}

void check_decay(const char* op, double sigma, double min_score, c10::string_view method,
                 bool naive) {
  DETOPS_CHECK(std::isfinite(sigma) && sigma > 0, op, "sigma must be positive and finite, got ",
               sigma);
  check_number(op, "min_score", min_score);
  decay_method(op, method, naive);
}

}  // namespace

void check_nms(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
               double iou_threshold, int64_t columns) {
  const bool rotated = columns == 5;
  DETOPS_CHECK(rotated || columns == 4, "check_nms", "columns must be 4 or 5, got ", columns);
  const char* op =
      idxs ? (rotated ? "batched_nms_rotated" : "batched_nms") : (rotated ? "nms_rotated" : "nms");
  check_scored_boxes(op, boxes, columns, scores, idxs);
  check_number(op, "iou_threshold", iou_threshold);
}

std::tuple<Tensor, Tensor> nms_padded(const Tensor& boxes, const Tensor& scores,
                                      const std::optional<Tensor>& idxs, double iou_threshold,
                                      Int max_output) {
  check_scored_boxes("nms_padded", boxes, 4, scores, idxs);
  check_number("nms_padded", "iou_threshold", iou_threshold);
  TORCH_SYM_CHECK(max_output.sym_ge(0), "detops.nms_padded: max_output must be at least 0, got ",
                  max_output);
  check_size("nms_padded", "max_output", max_output);
  const auto options = boxes.options().dtype(at::kLong);
  return {at::empty_symint({std::move(max_output)}, options), at::empty({}, options)};
}

void check_soft_nms(const Tensor& boxes, const Tensor& scores, double iou_threshold, double sigma,
                    double min_score, c10::string_view method) {
  check_scored_boxes("soft_nms", boxes, 4, scores, std::nullopt);
  check_number("soft_nms", "iou_threshold", iou_threshold);
  check_decay("soft_nms", sigma, min_score, method, /*naive=*/true);
}

void check_matrix_nms(const Tensor& boxes, const Tensor& scores, const std::optional<Tensor>& idxs,
                      double sigma, double min_score, c10::string_view method) {
  check_scored_boxes("matrix_nms", boxes, 4, scores, idxs);
  check_decay("matrix_nms", sigma, min_score, method, /*naive=*/false);
}

}  // namespace detops::meta
