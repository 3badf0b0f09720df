# SPDX-License-Identifier: MIT
"""The ops in operators of ONNX: what ``torch.onnx.export`` writes in their place."""

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from . import boxes, convolutions, keypoints, masks, nms, roi, symbols

_BY_OP: dict[str, Callable[..., Any]] = {
    "nms": nms.nms,
    "batched_nms": nms.batched_nms,
    "roi_align_forward": roi.roi_align,
    "multiscale_roi_align_forward": roi.multiscale_roi_align,
    "roi_align_rotated_forward": roi.roi_align_rotated,
    "deform_conv2d_forward": convolutions.deform_conv2d,
    "winograd_conv2d_forward": convolutions.winograd_conv2d,
    "encode_boxes_forward": boxes.encode_boxes,
    "decode_boxes_forward": boxes.decode_boxes,
    "paste_masks_in_image": masks.paste_masks_in_image,
    "heatmaps_to_keypoints": keypoints.heatmaps_to_keypoints,
}


def _with_defaults(op: Any, translate: Callable[..., Any]) -> Callable[..., Any]:
    """A graph leaves arguments out that have their default; the schema has it."""

    @wraps(translate)
    def call(*args: Any, **kwargs: Any) -> Any:
        rest = op._schema.arguments[len(args) :]
        return translate(*args, *(kwargs.get(a.name, a.default_value) for a in rest))

    return call


def translations() -> dict[Any, Callable[..., Any]]:
    """For ``custom_translation_table`` of ``torch.onnx.export``."""
    overloads = {getattr(torch.ops.detops, name).default: f for name, f in _BY_OP.items()}
    table: dict[Any, Callable[..., Any]] = {
        op: _with_defaults(op, f) for op, f in overloads.items()
    }
    return table | {operator.le: symbols.at_most}
