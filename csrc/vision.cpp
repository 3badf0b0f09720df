// SPDX-License-Identifier: MIT
// The dispatch page: every op, and which function runs it on which backend. Nothing else. It is
// compiled into the library of each backend.
#include <torch/csrc/stable/library.h>

#include "ops.h"
#include "structured.h"

namespace {

// clang-format off
// What runs an op on each backend: a host function of cpu/ or cuda/ for the op.
#define DETOPS_OPS(op) \
  op(nms, nms) \
  op(batched_nms, batched_nms) \
  op(nms_rotated, nms_rotated) \
  op(batched_nms_rotated, batched_nms_rotated) \
  op(soft_nms, soft_nms) \
  op(matrix_nms, matrix_nms) \
  op(nms_padded, nms_padded) \
  op(nms_match, nms_match) \
  op(weighted_box_fusion, weighted_box_fusion) \
  op(roi_align, roi_align_forward) \
  op(roi_align_forward, roi_align_forward) \
  op(roi_align_backward, roi_align_backward) \
  op(multiscale_roi_align, multiscale_roi_align_forward) \
  op(multiscale_roi_align_forward, multiscale_roi_align_forward) \
  op(multiscale_roi_align_backward, multiscale_roi_align_backward) \
  op(roi_align_rotated, roi_align_rotated_forward) \
  op(roi_align_rotated_forward, roi_align_rotated_forward) \
  op(roi_align_rotated_backward, roi_align_rotated_backward) \
  op(riroi_align_rotated, riroi_align_rotated_forward) \
  op(riroi_align_rotated_forward, riroi_align_rotated_forward) \
  op(riroi_align_rotated_backward, riroi_align_rotated_backward) \
  op(roi_align_max, roi_align_max_forward) \
  op(roi_align_max_forward, roi_align_max_forward) \
  op(roi_align_max_backward, roi_align_max_backward) \
  op(border_align, border_align_forward) \
  op(border_align_forward, border_align_forward) \
  op(border_align_backward, border_align_backward) \
  op(prroi_pool, prroi_pool_forward) \
  op(prroi_pool_forward, prroi_pool_forward) \
  op(prroi_pool_backward, prroi_pool_backward) \
  op(roi_pool, roi_pool_forward) \
  op(roi_pool_forward, roi_pool_forward) \
  op(roi_pool_backward, roi_pool_backward) \
  op(ps_roi_align, ps_roi_align_forward) \
  op(ps_roi_align_forward, ps_roi_align_forward) \
  op(ps_roi_align_backward, ps_roi_align_backward) \
  op(ps_roi_pool, ps_roi_pool_forward) \
  op(ps_roi_pool_forward, ps_roi_pool_forward) \
  op(ps_roi_pool_backward, ps_roi_pool_backward) \
  op(deform_psroi_pool_forward, deform_psroi_pool_forward) \
  op(deform_psroi_pool_backward, deform_psroi_pool_backward) \
  op(deform_roi_pool, deform_roi_pool_forward) \
  op(deform_roi_pool_forward, deform_roi_pool_forward) \
  op(deform_roi_pool_backward, deform_roi_pool_backward) \
  op(deform_conv2d, deform_conv2d_forward) \
  op(deform_conv2d_forward, deform_conv2d_forward) \
  op(deform_conv2d_backward, deform_conv2d_backward) \
  op(ms_deform_attn, ms_deform_attn_forward) \
  op(ms_deform_attn_forward, ms_deform_attn_forward) \
  op(ms_deform_attn_backward, ms_deform_attn_backward) \
  op(box_iou_forward, box_iou_forward) \
  op(box_iou_backward, box_iou_backward) \
  op(box_iou_aligned_forward, box_iou_aligned_forward) \
  op(box_iou_aligned_backward, box_iou_aligned_backward) \
  op(box_iou_loss_forward, box_iou_loss_forward) \
  op(box_iou_loss_backward, box_iou_loss_backward) \
  op(match_boxes, match_boxes) \
  op(linear_assignment, linear_assignment) \
  op(box_iou_rotated, box_iou_rotated) \
  op(rotated_iou, rotated_iou_forward) \
  op(rotated_iou_forward, rotated_iou_forward) \
  op(rotated_iou_backward, rotated_iou_backward) \
  op(encode_boxes, encode_boxes_forward) \
  op(encode_boxes_forward, encode_boxes_forward) \
  op(encode_boxes_backward, encode_boxes_backward) \
  op(decode_boxes, decode_boxes_forward) \
  op(decode_boxes_forward, decode_boxes_forward) \
  op(decode_boxes_backward, decode_boxes_backward) \
  op(sigmoid_focal_loss_forward, sigmoid_focal_loss_forward) \
  op(sigmoid_focal_loss_sum, sigmoid_focal_loss_sum) \
  op(sigmoid_focal_loss_backward, sigmoid_focal_loss_backward) \
  op(softmax_focal_loss_forward, softmax_focal_loss_forward) \
  op(softmax_focal_loss_backward, softmax_focal_loss_backward) \
  op(chamfer_distance, chamfer_distance_forward) \
  op(chamfer_distance_forward, chamfer_distance_forward) \
  op(chamfer_distance_backward, chamfer_distance_backward) \
  op(masks_to_boxes, masks_to_boxes) \
  op(mask_iou, mask_iou) \
  op(mask_nms, mask_nms) \
  op(masks_to_rle, masks_to_rle) \
  op(paste_masks_in_image, paste_masks_in_image) \
  op(point_sample, point_sample_forward) \
  op(point_sample_forward, point_sample_forward) \
  op(point_sample_backward, point_sample_backward) \
  op(carafe, carafe_forward) \
  op(carafe_forward, carafe_forward) \
  op(carafe_backward, carafe_backward) \
  op(masked_conv2d, masked_conv2d_forward) \
  op(masked_conv2d_forward, masked_conv2d_forward) \
  op(winograd_conv2d, winograd_conv2d_forward) \
  op(winograd_conv2d_forward, winograd_conv2d_forward) \
  op(corner_pool, corner_pool_forward) \
  op(corner_pool_forward, corner_pool_forward) \
  op(corner_pool_backward, corner_pool_backward) \
  op(rotated_feature_align, rotated_feature_align_forward) \
  op(rotated_feature_align_forward, rotated_feature_align_forward) \
  op(rotated_feature_align_backward, rotated_feature_align_backward) \
  op(active_rotated_filter, active_rotated_filter_forward) \
  op(active_rotated_filter_forward, active_rotated_filter_forward) \
  op(active_rotated_filter_backward, active_rotated_filter_backward) \
  op(heatmaps_to_keypoints, heatmaps_to_keypoints) \
  op(convex_iou, convex_iou) \
  op(convex_giou, convex_giou_forward) \
  op(convex_giou_forward, convex_giou_forward) \
  op(convex_giou_backward, convex_giou_backward) \
  op(min_area_polygons, min_area_polygons) \
  op(points_in_polygons, points_in_polygons) \
  op(box_iou_quadri, box_iou_quadri) \
  op(box_iou_quadri_pairs, box_iou_quadri_pairs) \
  op(nms_quadri, nms_quadri) \
  op(axpy, axpy_forward) \
  op(axpy_forward, axpy_forward) \
  op(axpy_backward, axpy_backward) \
  op(gdh_forward, gdh_forward) \
  op(mlp, mlp_forward) \
  op(mlp_forward, mlp_forward) \
  op(mlp_backward, mlp_backward) \
  op(lltm_forward, lltm_forward) \
  op(lltm_backward, lltm_backward)

// Those that other processors have libraries for.
#define DETOPS_CPU_OPS(op) \
  op(batch_transpose, batch_transpose) \
  op(winograd_conv2d_backward_weight, winograd_conv2d_backward_weight) \
  op(pack_conv2d_weight, pack_conv2d_weight) \
  op(pack_winograd_weight, pack_winograd_weight) \
  op(packed_conv2d, packed_conv2d)
// clang-format on

#if defined(USE_CUDA) || defined(DETOPS_EMULATE_CUDA)
namespace backend = detops::cuda;
#else
namespace backend = detops::cpu;
#endif

// As template arguments.
namespace name_of {

#define DETOPS_NAME_OF(op, function) constexpr char op[] = #op;
DETOPS_OPS(DETOPS_NAME_OF)
DETOPS_CPU_OPS(DETOPS_NAME_OF)

}  // namespace name_of

void implement_ops(torch::stable::detail::StableLibrary& m) {
#define DETOPS_IMPLEMENT(op, function) \
  m.impl(#op, &detops::Structured<name_of::op, &backend::function>::call);
  DETOPS_OPS(DETOPS_IMPLEMENT)
}

}  // namespace

#ifdef USE_CUDA
STABLE_TORCH_LIBRARY_IMPL(detops, CUDA, m) { implement_ops(m); }
#else
STABLE_TORCH_LIBRARY(detops, m) {
  for (const detops::Contract& contract : detops::Contract::all()) m.def(contract.schema.c_str());
}

STABLE_TORCH_LIBRARY_IMPL(detops, CPU, m) {
  implement_ops(m);
#define DETOPS_IMPLEMENT_ON_CPU(op, function) \
  m.impl(#op, &detops::Structured<name_of::op, &detops::cpu::function>::call);
  DETOPS_CPU_OPS(DETOPS_IMPLEMENT_ON_CPU)
}
#endif
