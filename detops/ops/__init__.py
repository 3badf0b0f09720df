"""The public functions and modules, one file per op."""

from .active_rotated_filter import active_rotated_filter
from .axpy import Axpy, axpy
from .border_align import BorderAlign, border_align
from .box_coder import BoxCoder, decode_boxes, encode_boxes
from .box_iou import (
    box_iou,
    complete_box_iou,
    distance_box_iou,
    generalized_box_iou,
    match_boxes,
)
from .box_iou_loss import (
    complete_box_iou_loss,
    distance_box_iou_loss,
    generalized_box_iou_loss,
)
from .box_iou_quadri import box_iou_quadri, nms_quadri
from .box_iou_rotated import box_iou_rotated
from .boxes import box_area, box_convert, clip_boxes_to_image, remove_small_boxes
from .carafe import CARAFE, carafe
from .chamfer_distance import chamfer_distance
from .convex_iou import convex_giou, convex_iou
from .corner_pool import CornerPool, corner_pool
from .deform_conv2d import DeformConv2d, deform_conv2d
from .deform_psroi_pooling import DeformPSRoIPooling, deform_psroi_pooling
from .deform_roi_pool import DeformRoIPool, deform_roi_pool
from .focal_loss import sigmoid_focal_loss
from .gdh import gdh, register_tensor_methods
from .heatmaps_to_keypoints import heatmaps_to_keypoints
from .linear_assignment import linear_assignment
from .lltm import LLTM, LLTMSequence, lltm, lltm_cell
from .mask_iou import mask_iou, mask_nms
from .masked_conv2d import MaskedConv2d, masked_conv2d
from .masks_to_boxes import masks_to_boxes
from .masks_to_rle import masks_to_rle
from .matrix_nms import matrix_nms
from .min_area_polygons import min_area_polygons
from .mlp import MLP, mlp
from .ms_deform_attn import MultiScaleDeformableAttention, ms_deform_attn
from .multiscale_roi_align import MultiScaleRoIAlign, multiscale_roi_align
from .nms import batched_nms, nms, nms_match, nms_padded
from .nms_rotated import batched_nms_rotated, nms_rotated
from .paste_masks_in_image import paste_masks_in_image
from .point_sample import point_sample
from .points_in_polygons import points_in_polygons
from .prroi_pool import PrRoIPool, prroi_pool
from .ps_roi_align import PSRoIAlign, ps_roi_align
from .ps_roi_pool import PSRoIPool, ps_roi_pool
from .riroi_align_rotated import RiRoIAlignRotated, riroi_align_rotated
from .roi_align import RoIAlign, roi_align
from .roi_align_max import RoIAlignMax, roi_align_max
from .roi_align_rotated import RoIAlignRotated, roi_align_rotated
from .roi_pool import RoIPool, roi_pool
from .rotated_feature_align import rotated_feature_align
from .rotated_iou import rotated_iou, rotated_iou_loss
from .soft_nms import soft_nms
from .softmax_focal_loss import softmax_focal_loss
from .weighted_box_fusion import weighted_box_fusion
from .winograd_conv2d import WinogradConv2d, winograd_conv2d

__all__ = [
    "Axpy",
    "BorderAlign",
    "BoxCoder",
    "CARAFE",
    "CornerPool",
    "DeformConv2d",
    "DeformPSRoIPooling",
    "DeformRoIPool",
    "LLTM",
    "LLTMSequence",
    "MLP",
    "MaskedConv2d",
    "MultiScaleDeformableAttention",
    "MultiScaleRoIAlign",
    "PSRoIAlign",
    "PSRoIPool",
    "PrRoIPool",
    "RiRoIAlignRotated",
    "RoIAlign",
    "RoIAlignMax",
    "RoIAlignRotated",
    "RoIPool",
    "WinogradConv2d",
    "active_rotated_filter",
    "axpy",
    "batched_nms",
    "batched_nms_rotated",
    "border_align",
    "box_area",
    "box_convert",
    "box_iou",
    "box_iou_quadri",
    "box_iou_rotated",
    "carafe",
    "chamfer_distance",
    "clip_boxes_to_image",
    "complete_box_iou",
    "complete_box_iou_loss",
    "corner_pool",
    "convex_giou",
    "convex_iou",
    "decode_boxes",
    "deform_conv2d",
    "deform_psroi_pooling",
    "deform_roi_pool",
    "distance_box_iou",
    "distance_box_iou_loss",
    "encode_boxes",
    "gdh",
    "generalized_box_iou",
    "generalized_box_iou_loss",
    "heatmaps_to_keypoints",
    "linear_assignment",
    "lltm",
    "lltm_cell",
    "mask_iou",
    "mask_nms",
    "masked_conv2d",
    "masks_to_boxes",
    "masks_to_rle",
    "match_boxes",
    "matrix_nms",
    "min_area_polygons",
    "mlp",
    "ms_deform_attn",
    "multiscale_roi_align",
    "nms",
    "nms_match",
    "nms_padded",
    "nms_quadri",
    "nms_rotated",
    "paste_masks_in_image",
    "point_sample",
    "prroi_pool",
    "points_in_polygons",
    "ps_roi_align",
    "ps_roi_pool",
    "register_tensor_methods",
    "remove_small_boxes",
    "riroi_align_rotated",
    "roi_align",
    "roi_align_max",
    "roi_align_rotated",
    "roi_pool",
    "rotated_feature_align",
    "rotated_iou",
    "rotated_iou_loss",
    "sigmoid_focal_loss",
    "soft_nms",
    "softmax_focal_loss",
    "weighted_box_fusion",
    "winograd_conv2d",
]
