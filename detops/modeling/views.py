"""Test-time augmentation: several sizes of an image, mirrored or not."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .rescale import rescale


class View(NamedTuple):
    """A version of an image: its shorter side, the maximum of the longer side, and mirroring.

    A shorter side of 0 keeps the size.
    """

    min_size: int
    max_size: int
    mirrored: bool

    def convert_boxes(self, target: Sequence[int], boxes: Tensor, size: Sequence[int]) -> Tensor:
        """Converts boxes ``[..., 4]`` from this view of (height, width) ``size`` to ``target``."""
        if self.mirrored:
            x1, y1, x2, y2 = boxes.unbind(-1)
            boxes = torch.stack([size[1] - x2, y1, size[1] - x1, y2], dim=-1)
        return rescale(boxes, size, target)
