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
from .gdh import gdh, register_tensor_methods
from .lltm import LLTM, LLTMSequence, lltm, lltm_cell
from .mlp import MLP, mlp
from .multiscale_roi_align import MultiScaleRoIAlign, multiscale_roi_align
from .nms import batched_nms, nms
from .ps_roi_align import PSRoIAlign, ps_roi_align
from .ps_roi_pool import PSRoIPool, ps_roi_pool
from .roi_align import RoIAlign, roi_align
from .roi_pool import RoIPool, roi_pool

__all__ = [
    "Axpy",
    "BoxCoder",
    "LLTM",
    "LLTMSequence",
    "MLP",
    "MultiScaleRoIAlign",
    "PSRoIAlign",
    "PSRoIPool",
    "RoIAlign",
    "RoIPool",
    "axpy",
    "batched_nms",
    "box_area",
    "box_convert",
    "box_iou",
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
    "mlp",
    "multiscale_roi_align",
    "nms",
    "ps_roi_align",
    "ps_roi_pool",
    "register_tensor_methods",
    "remove_small_boxes",
    "roi_align",
    "roi_pool",
]
