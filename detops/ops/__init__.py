"""The public functions and modules, one file per op."""

from .box_coder import BoxCoder, decode_boxes, encode_boxes
from .box_iou import (
    box_iou,
    complete_box_iou,
    distance_box_iou,
    generalized_box_iou,
    match_boxes,
)
from .boxes import box_area, box_convert, clip_boxes_to_image, remove_small_boxes
from .multiscale_roi_align import MultiScaleRoIAlign, multiscale_roi_align
from .nms import batched_nms, nms
from .roi_align import RoIAlign, roi_align

__all__ = [
    "BoxCoder",
    "MultiScaleRoIAlign",
    "RoIAlign",
    "batched_nms",
    "box_area",
    "box_convert",
    "box_iou",
    "complete_box_iou",
    "distance_box_iou",
    "generalized_box_iou",
    "match_boxes",
    "clip_boxes_to_image",
    "decode_boxes",
    "encode_boxes",
    "multiscale_roi_align",
    "nms",
    "remove_small_boxes",
    "roi_align",
]
