# SPDX-License-Identifier: MIT
"""Contents of ``detectron2._C`` and ``torch.ops.detectron2``.

detectron2 has the conventions of detops: counter-clockwise degrees and ``aligned`` rotated RoIs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _C
from . import coco_eval
from .thresholds import above, at_least

_ops = torch.ops.detops
_REGISTERED: list[torch.library.Library] = []

SCHEMAS = {
    "nms_rotated": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "box_iou_rotated": "(Tensor boxes1, Tensor boxes2) -> Tensor",
    "roi_align_rotated_forward": (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, int sampling_ratio) -> Tensor"
    ),
    "roi_align_rotated_backward": (
        "(Tensor grad, Tensor rois, float spatial_scale, SymInt pooled_height, "
        "SymInt pooled_width, SymInt batch_size, SymInt channels, SymInt height, SymInt width, "
        "int sampling_ratio) -> Tensor"
    ),
}


def nms_rotated(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Suppresses a box if the IoU reaches the threshold on CPU, or exceeds it on CUDA."""
    bound = (above if dets.is_cuda else at_least)(iou_threshold, dets)
    return _ops.nms_rotated(dets, scores, bound)


def roi_align_rotated_backward(grad: Tensor, *pooling: Any) -> Tensor:
    """Returns the gradient of the feature map."""
    return _ops.roi_align_rotated_backward(grad.contiguous(), *pooling)


def _cuda_version() -> str:
    version = _C.cuda_version
    return f"CUDA {version // 1000}.{version // 10 % 100}" if version else "not available"


def _compiler_version() -> str:
    from .. import __version__

    return f"detops {__version__}"


_OPS: dict[str, Callable[..., Any]] = {
    "nms_rotated": nms_rotated,
    "box_iou_rotated": _ops.box_iou_rotated,
    "roi_align_rotated_forward": _ops.roi_align_rotated_forward,
    "roi_align_rotated_backward": roi_align_rotated_backward,
}

FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_OPS,
    "roi_align_forward": _ops.roi_align_forward,
    "roi_align_backward": _ops.roi_align_backward,
    "deform_conv_forward": _ops.deform_conv_forward,
    "deform_conv_backward_input": _ops.deform_conv_backward_input,
    "deform_conv_backward_filter": _ops.deform_conv_backward_parameters,
    "modulated_deform_conv_forward": _ops.modulated_deform_conv_forward,
    "modulated_deform_conv_backward": _ops.modulated_deform_conv_backward,
    "get_compiler_version": _compiler_version,
    "get_cuda_version": _cuda_version,
    "has_cuda": lambda: _C.cuda_version is not None,
    "COCOevalAccumulate": coco_eval.accumulate,
    "COCOevalEvaluateImages": coco_eval.evaluate_images,
    "ImageEvaluation": coco_eval.ImageEvaluation,
    "InstanceAnnotation": coco_eval.InstanceAnnotation,
}


def contents() -> dict[str, Any]:
    """Returns the contents of ``detectron2._C``."""
    return dict(FUNCTIONS)


def register() -> None:
    """Defines ``torch.ops.detectron2`` in place of detectron2's own library."""
    if not _REGISTERED:
        library = torch.library.Library("detectron2", "FRAGMENT")
        for name, schema in SCHEMAS.items():
            library.define(name + schema)
            library.impl(name, _OPS[name], "CompositeExplicitAutograd")
        _REGISTERED.append(library)


def unregister() -> None:
    """Removes ``torch.ops.detectron2``."""
    while _REGISTERED:
        _REGISTERED.pop()._destroy()
