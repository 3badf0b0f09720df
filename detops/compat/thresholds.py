# SPDX-License-Identifier: MIT
"""Thresholds that make our NMS ops, which suppress above them, match other comparisons.

Other packages read the threshold as a float32, and some suppress at equality.
"""

import math

import torch
from torch import Tensor

_HIGHEST = torch.finfo(torch.float32).max


def _float32(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float32)


def above(threshold: float, boxes: Tensor) -> float:
    """Returns the threshold for IoU > float32(threshold)."""
    return _float32(threshold).item()


def at_least(threshold: float, boxes: Tensor) -> float:
    """Returns the threshold for IoU >= float32(threshold).

    The IoU has the dtype of ``boxes``, at least float32.
    """
    value = _float32(threshold)
    if boxes.dtype == torch.float64:
        value = value.double()
    return torch.nextafter(value, torch.full_like(value, -math.inf)).item()


def rounded_above(threshold: float) -> float:
    """Returns the threshold for float32(IoU) > float32(threshold), with the IoU in double."""
    value = _float32(threshold)
    successor = torch.nextafter(value, _float32(_HIGHEST))
    midpoint = (value.double() + successor.double()) / 2
    # A double halfway between two float32 values rounds to the one whose last bit is 0.
    if successor.view(torch.int32).item() % 2 == 0:
        midpoint = torch.nextafter(midpoint, value.double())
    return midpoint.item()


def rounded_at_least(threshold: float) -> float:
    """Returns the threshold for float32(IoU) >= float32(threshold), with the IoU in double."""
    return rounded_above(torch.nextafter(_float32(threshold), _float32(-_HIGHEST)).item())


def with_last_pixel(boxes: Tensor) -> Tensor:
    """Converts boxes that include their last pixel to boxes that end behind it."""
    # In float32, x2 + 1 - x1 may round differently from x2 - x1 + 1.
    return boxes.double() + torch.tensor([0.0, 0, 1, 1], dtype=torch.float64, device=boxes.device)
