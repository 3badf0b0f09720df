// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

namespace detops::meta {
namespace {

// Samples are taken one by one here, so a RoI's time grows with the square.
constexpr int64_t kMaxRatio = 64;

}  // namespace

Tensor roi_align_rotated_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                                 c10::SymInt pooled_height, c10::SymInt pooled_width,
                                 int64_t sampling_ratio) {
  const char* op = "roi_align_rotated";
  check_map(op, "input", input);
  check_rois(op, rois, input, "input", 6);
  check_pooling(op, pooled_height, pooled_width, sampling_ratio, kMaxRatio);
  check_scale(op, spatial_scale);
  return empty_map(input, rois.sym_size(0), input.sym_size(1), pooled_height, pooled_width);
}

Tensor roi_align_rotated_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                                  c10::SymInt pooled_height, c10::SymInt pooled_width,
                                  c10::SymInt batch_size, c10::SymInt channels, c10::SymInt height,
                                  c10::SymInt width, int64_t sampling_ratio) {
  const char* op = "roi_align_rotated_backward";
  check_pooled_grad(op, grad, rois, channels, pooled_height, pooled_width, 6);
  check_pooling(op, pooled_height, pooled_width, sampling_ratio, kMaxRatio);
  check_scale(op, spatial_scale);
  check_map_size(op, batch_size, channels, height, width);
  return empty_map(grad, batch_size, channels, height, width);
}

}  // namespace detops::meta
