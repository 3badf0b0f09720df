// SPDX-License-Identifier: MIT
#include "../ops.h"
#include "checks.h"

// PSRoIAlign and PSRoIPool differ in their rules of an axis only; both ops are here.
namespace detops::meta {
namespace {

// Channels of the output.
c10::SymInt groups_of(const char* op, const c10::SymInt& channels, const c10::SymInt& pooled_height,
                      const c10::SymInt& pooled_width) {
  TORCH_SYM_CHECK((channels % pooled_height)
                      .sym_eq(0)
                      .sym_and((channels / pooled_height % pooled_width).sym_eq(0)),
                  "detops.", op, ": input must have a multiple of output_size's ", pooled_height,
                  " x ", pooled_width, " channels, got ", channels);
  return channels / pooled_height / pooled_width;
}

Tensor forward(const char* op, const Tensor& input, const Tensor& rois, double spatial_scale,
               const c10::SymInt& pooled_height, const c10::SymInt& pooled_width,
               int64_t sampling_ratio) {
  check_map(op, "input", input);
  check_rois(op, rois, input, "input");
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  check_scale(op, spatial_scale);
  const c10::SymInt groups = groups_of(op, input.sym_size(1), pooled_height, pooled_width);
  return empty_map(input, rois.sym_size(0), groups, pooled_height, pooled_width);
}

Tensor backward(const char* op, const Tensor& grad, const Tensor& rois, double spatial_scale,
                const c10::SymInt& pooled_height, const c10::SymInt& pooled_width,
                const c10::SymInt& batch_size, const c10::SymInt& channels,
                const c10::SymInt& height, const c10::SymInt& width, int64_t sampling_ratio) {
  check_pooling(op, pooled_height, pooled_width, sampling_ratio);
  const c10::SymInt groups = groups_of(op, channels, pooled_height, pooled_width);
  check_pooled_grad(op, grad, rois, groups, pooled_height, pooled_width);
  check_scale(op, spatial_scale);
  check_map_size(op, batch_size, channels, height, width);
  return empty_map(grad, batch_size, channels, height, width);
}

}  // namespace

Tensor ps_roi_align_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                            c10::SymInt pooled_height, c10::SymInt pooled_width,
                            int64_t sampling_ratio) {
  return forward("ps_roi_align", input, rois, spatial_scale, pooled_height, pooled_width,
                 sampling_ratio);
}

Tensor ps_roi_align_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                             c10::SymInt pooled_height, c10::SymInt pooled_width,
                             c10::SymInt batch_size, c10::SymInt channels, c10::SymInt height,
                             c10::SymInt width, int64_t sampling_ratio) {
  return backward("ps_roi_align_backward", grad, rois, spatial_scale, pooled_height, pooled_width,
                  batch_size, channels, height, width, sampling_ratio);
}

Tensor ps_roi_pool_forward(const Tensor& input, const Tensor& rois, double spatial_scale,
                           c10::SymInt pooled_height, c10::SymInt pooled_width) {
  return forward("ps_roi_pool", input, rois, spatial_scale, pooled_height, pooled_width, 0);
}

Tensor ps_roi_pool_backward(const Tensor& grad, const Tensor& rois, double spatial_scale,
                            c10::SymInt pooled_height, c10::SymInt pooled_width,
                            c10::SymInt batch_size, c10::SymInt channels, c10::SymInt height,
                            c10::SymInt width) {
  return backward("ps_roi_pool_backward", grad, rois, spatial_scale, pooled_height, pooled_width,
                  batch_size, channels, height, width, 0);
}

}  // namespace detops::meta
