"""The public functions and modules, one file per op."""

from .axpy import Axpy, axpy
from .box_coder import BoxCoder, decode_boxes, encode_boxes
from .box_iou import (
    box_iou,
    complete_box_iou,
    distance_box_iou,
    generalized_box_iou,
    match_boxes,
)
from .box_iou_rotated import box_iou_rotated
from .boxes import box_area, box_convert, clip_boxes_to_image, remove_small_boxes
from .gdh import gdh, register_tensor_methods
from .lltm import LLTM, LLTMSequence, lltm, lltm_cell
from .matrix_nms import matrix_nms
from .mlp import MLP, mlp
from .multiscale_roi_align import MultiScaleRoIAlign, multiscale_roi_align
from .nms import batched_nms, nms
from .nms_rotated import batched_nms_rotated, nms_rotated
from .roi_align import RoIAlign, roi_align
from .soft_nms import soft_nms

__all__ = [
    "Axpy",
    "BoxCoder",
    "LLTM",
    "LLTMSequence",
    "MLP",
    "MultiScaleRoIAlign",
    "RoIAlign",
    "axpy",
    "batched_nms",
    "batched_nms_rotated",
    "box_area",
    "box_convert",
    "box_iou",
    "box_iou_rotated",
    "clip_boxes_to_image",
    "complete_box_iou",
    "decode_boxes",
    "distance_box_iou",
    "encode_boxes",
    "gdh",
    "generalized_box_iou",
    "lltm",
    "lltm_cell",
    "match_boxes",
    "matrix_nms",
    "mlp",
    "multiscale_roi_align",
    "nms",
    "nms_rotated",
    "register_tensor_methods",
    "remove_small_boxes",
    "roi_align",
    "soft_nms",
]
