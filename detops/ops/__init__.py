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
from .boxes import box_area, box_convert, clip_boxes_to_image, remove_small_boxes
from .deform_psroi_pooling import DeformPSRoIPooling, deform_psroi_pooling
from .gdh import gdh, register_tensor_methods
from .lltm import LLTM, LLTMSequence, lltm, lltm_cell
from .mlp import MLP, mlp
from .multiscale_roi_align import MultiScaleRoIAlign, multiscale_roi_align
from .nms import batched_nms, nms
from .roi_align import RoIAlign, roi_align
from .roi_align_rotated import RoIAlignRotated, roi_align_rotated

__all__ = [
    "Axpy",
    "BoxCoder",
    "DeformPSRoIPooling",
    "LLTM",
    "LLTMSequence",
    "MLP",
    "MultiScaleRoIAlign",
    "RoIAlign",
    "RoIAlignRotated",
    "axpy",
    "batched_nms",
    "box_area",
    "box_convert",
    "box_iou",
    "clip_boxes_to_image",
    "complete_box_iou",
    "decode_boxes",
    "deform_psroi_pooling",
    "distance_box_iou",
    "encode_boxes",
    "gdh",
    "generalized_box_iou",
    "lltm",
    "lltm_cell",
    "match_boxes",
    "mlp",
    "multiscale_roi_align",
    "nms",
    "register_tensor_methods",
    "remove_small_boxes",
    "roi_align",
    "roi_align_rotated",
]
