// SPDX-License-Identifier: MIT
// Dispatch table: every op, and the function that runs it on each backend. It is compiled into the
// library of each backend.
#include <torch/csrc/stable/library.h>

#include "ops.h"
#include "structured.h"

namespace {

// clang-format off
// Both passes of an op. DETOPS_PASSES adds the op itself, which runs its forward pass.
#define DETOPS_RAW_PASSES(op, name) \
  op(name##_forward, name##_forward) op(name##_backward, name##_backward)
#define DETOPS_PASSES(op, name) op(name, name##_forward) DETOPS_RAW_PASSES(op, name)

// Every op with its host function in cpu/ or cuda/.
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
  DETOPS_PASSES(op, roi_align) \
  DETOPS_PASSES(op, multiscale_roi_align) \
  DETOPS_PASSES(op, roi_align_rotated) \
  DETOPS_PASSES(op, riroi_align_rotated) \
  DETOPS_PASSES(op, roi_align_max) \
  DETOPS_PASSES(op, border_align) \
  DETOPS_PASSES(op, prroi_pool) \
  DETOPS_PASSES(op, roi_pool) \
  DETOPS_PASSES(op, ps_roi_align) \
  DETOPS_PASSES(op, ps_roi_pool) \
  DETOPS_PASSES(op, deform_psroi_pool) \
  DETOPS_PASSES(op, deform_roi_pool) \
  DETOPS_PASSES(op, deform_conv2d) \
  DETOPS_PASSES(op, ms_deform_attn) \
  op(box_iou_matrix, box_iou_forward) \
  DETOPS_RAW_PASSES(op, box_iou) \
  DETOPS_PASSES(op, box_iou_aligned) \
  DETOPS_PASSES(op, box_iou_loss) \
  op(match_boxes, match_boxes) \
  op(linear_assignment, linear_assignment) \
  op(box_iou_rotated, box_iou_rotated) \
  DETOPS_PASSES(op, rotated_iou) \
  DETOPS_PASSES(op, encode_boxes) \
  DETOPS_PASSES(op, decode_boxes) \
  op(sigmoid_focal_loss_elements, sigmoid_focal_loss_forward) \
  DETOPS_RAW_PASSES(op, sigmoid_focal_loss) \
  op(sigmoid_focal_loss_sum, sigmoid_focal_loss_sum) \
  op(softmax_focal_loss_elements, softmax_focal_loss_forward) \
  DETOPS_RAW_PASSES(op, softmax_focal_loss) \
  DETOPS_PASSES(op, chamfer_distance) \
  op(masks_to_boxes, masks_to_boxes) \
  op(mask_iou, mask_iou) \
  op(mask_nms, mask_nms) \
  op(masks_to_rle, masks_to_rle) \
  op(paste_masks_in_image, paste_masks_in_image) \
  DETOPS_PASSES(op, point_sample) \
  DETOPS_PASSES(op, carafe) \
  op(masked_conv2d, masked_conv2d_forward) \
  op(masked_conv2d_forward, masked_conv2d_forward) \
  op(winograd_conv2d, winograd_conv2d_forward) \
  op(winograd_conv2d_forward, winograd_conv2d_forward) \
  DETOPS_PASSES(op, corner_pool) \
  DETOPS_PASSES(op, rotated_feature_align) \
  DETOPS_PASSES(op, active_rotated_filter) \
  op(heatmaps_to_keypoints, heatmaps_to_keypoints) \
  op(convex_iou, convex_iou) \
  DETOPS_PASSES(op, convex_giou) \
  op(min_area_polygons, min_area_polygons) \
  op(points_in_polygons, points_in_polygons) \
  op(box_iou_quadri, box_iou_quadri) \
  op(box_iou_quadri_pairs, box_iou_quadri_pairs) \
  op(nms_quadri, nms_quadri) \
  DETOPS_PASSES(op, axpy) \
  op(gdh_forward, gdh_forward) \
  DETOPS_PASSES(op, mlp) \
  op(lltm, lltm) \
  op(lltm_cell, lltm_forward) \
  DETOPS_RAW_PASSES(op, lltm)

// Ops of the CPU only. Other devices have libraries for these.
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

// A template argument must have linkage, hence the static array.
void implement_ops(torch::stable::detail::StableLibrary& m) {
#define DETOPS_IMPLEMENT(op, function) \
  static constexpr char op[] = #op;    \
  m.impl(op, &detops::Structured<op, &backend::function>::call);
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
  namespace backend = detops::cpu;
  DETOPS_CPU_OPS(DETOPS_IMPLEMENT)
}
#endif
