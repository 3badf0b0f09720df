# SPDX-License-Identifier: MIT
"""Translations of the ops to operators of ONNX, for ``torch.onnx.export``."""

import operator
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ...registration import CONTRACTS
from . import boxes, convolutions, keypoints, masks, nms, roi, symbols

_BY_OP: dict[str, Callable[..., Any]] = {
    "nms": nms.nms,
    "batched_nms": nms.batched_nms,
    "roi_align": roi.roi_align,
    "multiscale_roi_align": roi.multiscale_roi_align,
    "roi_align_rotated": roi.roi_align_rotated,
    "deform_conv2d": convolutions.deform_conv2d,
    "winograd_conv2d": convolutions.winograd_conv2d,
    "encode_boxes": boxes.encode_boxes,
    "decode_boxes": boxes.decode_boxes,
    "paste_masks_in_image": masks.paste_masks_in_image,
    "heatmaps_to_keypoints": keypoints.heatmaps_to_keypoints,
}


def _with_defaults(op: Any, translate: Callable[..., Any]) -> Callable[..., Any]:
    """Fills in default arguments from the schema, since graphs omit them."""

    @wraps(translate)
    def call(*args: Any, **kwargs: Any) -> Any:
        rest = op._schema.arguments[len(args) :]
        return translate(*args, *(kwargs.get(a.name, a.default_value) for a in rest))

    return call


def translations() -> dict[Any, Callable[..., Any]]:
    """Returns the ``custom_translation_table`` for ``torch.onnx.export``."""
    table: dict[Any, Callable[..., Any]] = {operator.le: symbols.at_most}
    for name, translate in _BY_OP.items():
        for each in (name, f"{name}_forward"):  # programs of earlier versions use the raw ops
            if each in CONTRACTS:
                op = getattr(torch.ops.detops, each).default
                table[op] = _with_defaults(op, translate)
    return table
