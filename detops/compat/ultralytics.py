# SPDX-License-Identifier: MIT
"""Patches NMS, deformable attention and matching of ultralytics, and torchvision."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from .. import ops
from .assignment import linear_sum_assignment
from .attention import attend_flat
from .patching import Patch, patch_installed


def _nms(original: Callable[..., Tensor], boxes: Tensor, scores: Tensor, threshold: Any) -> Tensor:
    is_supported = boxes.device.type in ("cpu", "cuda") and boxes.is_floating_point()
    return ops.nms(boxes, scores, threshold) if is_supported else original(boxes, scores, threshold)


FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("ultralytics.nn.modules.utils", "multi_scale_deformable_attn_pytorch"): attend_flat,
    ("ultralytics.utils.nms", "TorchNMS.nms"): _nms,
    ("ultralytics.utils.ops", "linear_sum_assignment"): linear_sum_assignment,
}


def patch() -> Patch:
    """Applies the patch until it is restored."""
    return patch_installed("ultralytics", FUNCTIONS)
