# SPDX-License-Identifier: MIT
"""Thresholds for our NMS ops, which suppress above them, that give what other comparisons give.

Other packages take the threshold as a float32, and some of them suppress at it.
"""

import math

import torch
from torch import Tensor

_HIGHEST = torch.finfo(torch.float32).max


def _float32(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float32)


def above(threshold: float, boxes: Tensor) -> float:
    """For IoU > float32(threshold)."""
    return _float32(threshold).item()


def at_least(threshold: float, boxes: Tensor) -> float:
    """For IoU >= float32(threshold), where the IoU has the dtype of ``boxes``, float32 at least."""
    value = _float32(threshold)
    if boxes.dtype == torch.float64:
        value = value.double()
    return torch.nextafter(value, torch.full_like(value, -math.inf)).item()


def rounded_above(threshold: float) -> float:
    """For float32(IoU) > float32(threshold), where the IoU is computed in double."""
    value = _float32(threshold)
    after = torch.nextafter(value, _float32(_HIGHEST))
    middle = (value.double() + after.double()) / 2
    # Halfway between two float32, the one whose last bit is 0 is the rounded one.
    if after.view(torch.int32).item() % 2 == 0:
        middle = torch.nextafter(middle, value.double())
    return middle.item()


def rounded_at_least(threshold: float) -> float:
    """For float32(IoU) >= float32(threshold), where the IoU is computed in double."""
    return rounded_above(torch.nextafter(_float32(threshold), _float32(-_HIGHEST)).item())


def with_last_pixel(boxes: Tensor) -> Tensor:
    """Boxes whose last pixel belongs to them, as boxes that end behind it."""
    # x2 + 1 - x1 in float32 would round fractions other than x2 - x1 + 1 does.
    return boxes.double() + torch.tensor([0.0, 0, 1, 1], dtype=torch.float64, device=boxes.device)
