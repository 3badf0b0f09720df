# SPDX-License-Identifier: MIT
"""Benchmarks of the ops on masks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, proposals

COUNT, HEIGHT, WIDTH, CELLS = 100, 800, 1333, 28


def ellipses(count: int, cells: int) -> Tensor:
    """Masks ``[count, cells, cells]`` as a mask head has them: high inside, low outside."""
    centres = (torch.arange(cells) + 0.5) / cells * 2 - 1
    inside = 1 - (centres.square()[:, None] + centres.square())
    return torch.sigmoid(6 * inside).expand(count, cells, cells).contiguous()


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
    import torchvision
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    generator = torch.Generator().manual_seed(0)
    boxes = proposals(generator, COUNT, WIDTH, HEIGHT).to(device)
    masks = ellipses(COUNT, CELLS)[:, None].to(device)
    shape = (HEIGHT, WIDTH)
    pixels = COUNT * HEIGHT * WIDTH
    yield Case(
        "paste_masks_in_image",
        f"{COUNT} of {CELLS} x {CELLS} on {HEIGHT} x {WIDTH:,}",
        lambda: ops.paste_masks_in_image(masks, boxes, shape),
        # Other pixels: it moves the corners of boxes to whole ones.
        lambda: paste_masks_in_image(masks, boxes, shape) > 0.5,
        bytes=pixels,
    )
    pasted = ops.paste_masks_in_image(masks, boxes, shape)
    yield Case(
        "masks_to_boxes",
        f"{COUNT} x {HEIGHT} x {WIDTH:,}",
        lambda: ops.masks_to_boxes(pasted),
        lambda: torchvision.ops.masks_to_boxes(pasted),
        dtype="bool",
        bytes=pixels,
        quick=True,
    )
