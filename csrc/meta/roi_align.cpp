// SPDX-License-Identifier: MIT
#include <cmath>

#include "../ops.h"
#include "checks.h"

namespace detops::meta {

namespace {

// Beyond these the powers of two that tell levels apart leave the range of a double.
constexpr int64_t kMaxCanonicalLevel = 512;

void check_pyramid(const char* op, at::ArrayRef<double> spatial_scales, double canonical_scale,
                   int64_t canonical_level) {
  for (const double scale : spatial_scales) check_scale(op, scale);
  DETOPS_CHECK(std::isfinite(canonical_scale) && canonical_scale > 0, op,
               "canonical_scale must be positive and finite, got ", canonical_scale);
  DETOPS_CHECK(-kMaxCanonicalLevel <= canonical_level && canonical_level <= kMaxCanonicalLevel, op,
               "canonical_level must be within ", kMaxCanonicalLevel, " of 0, got ",
               canonical_level);
}

}  // namespace

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
  check_map_size(op, batch_size, channels, height, width);
  return empty_map(grad, batch_size, channels, height, width);
}

Tensor multiscale_roi_align_forward(at::TensorList inputs, const Tensor& rois,
                                    at::ArrayRef<double> spatial_scales, c10::SymInt pooled_height,
                                    c10::SymInt pooled_width, int64_t sampling_ratio, bool,
                                    double canonical_scale, int64_t canonical_level) {
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
  check_pyramid(op, spatial_scales, canonical_scale, canonical_level);
  return empty_map(first, rois.sym_size(0), first.sym_size(1), pooled_height, pooled_width);
}

std::vector<Tensor> multiscale_roi_align_backward(
    const Tensor& grad, const Tensor& rois, at::ArrayRef<double> spatial_scales,
    c10::SymInt pooled_height, c10::SymInt pooled_width, c10::SymInt batch_size,
    c10::SymInt channels, c10::SymIntArrayRef heights, c10::SymIntArrayRef widths,
    int64_t sampling_ratio, bool, double canonical_scale, int64_t canonical_level) {
  const char* op = "multiscale_roi_align_backward";
  check_pooled_grad(op, grad, rois, channels, pooled_height, pooled_width);
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  DETOPS_CHECK(!heights.empty() && heights.size() <= kMaxLevels &&
                   heights.size() == widths.size() && heights.size() == spatial_scales.size(),
               op, "heights, widths and spatial_scales must have one entry per feature map, got ",
               heights.size(), ", ", widths.size(), " and ", spatial_scales.size());
  check_pyramid(op, spatial_scales, canonical_scale, canonical_level);
  std::vector<Tensor> grads;
  for (size_t i = 0; i < heights.size(); ++i) {
    check_map_size(op, batch_size, channels, heights[i], widths[i]);
    grads.push_back(empty_map(grad, batch_size, channels, heights[i], widths[i]));
  }
  return grads;
}

}  // namespace detops::meta
