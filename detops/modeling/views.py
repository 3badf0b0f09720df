"""Test-time augmentation: an image is looked at in several sizes, mirrored and not."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .rescale import rescale


class View(NamedTuple):
    """A form of an image: its shorter side, the bound of the longer, and whether it is mirrored.

    A shorter side of 0 leaves the size alone.
    """

    min_size: int
    max_size: int
    mirrored: bool

    def boxes_in(self, target: Sequence[int], boxes: Tensor, size: Sequence[int]) -> Tensor:
        """Boxes ``[..., 4]`` of this view of (height, width) ``size``, in pixels of ``target``."""
        if self.mirrored:
            x1, y1, x2, y2 = boxes.unbind(-1)
            boxes = torch.stack([size[1] - x2, y1, size[1] - x1, y2], dim=-1)
        return rescale(boxes, size, target)
