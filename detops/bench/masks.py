# SPDX-License-Identifier: MIT
"""Benchmarks of the mask ops."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, proposals

OPS = ("paste_masks_in_image", "masks_to_boxes", "masks_to_rle")

COUNT, COUNT_ON_GPU, HEIGHT, WIDTH, CELLS = 100, 400, 800, 1333, 28


def ellipses(count: int, cells: int) -> Tensor:
    """Returns mask-head outputs ``[count, cells, cells]``: high inside an ellipse, low outside."""
    centres = (torch.arange(cells) + 0.5) / cells * 2 - 1
    inside = 1 - (centres.square()[:, None] + centres.square())
    return torch.sigmoid(6 * inside).expand(count, cells, cells).contiguous()


def _run_lengths(name: str, masks: Tensor, quick: bool = False) -> Iterator[Case]:
    """Yields row-major and column-major masks; pycocotools encodes column-major ones only."""
    try:
        from pycocotools import mask as coco
    except ImportError:
        coco = None
    columns = masks.mT.contiguous()
    readable = columns.cpu().view(torch.uint8).permute(2, 1, 0).numpy()
    for layout, inputs in (("rows", masks), ("columns", columns.mT)):
        yield Case(
            "masks_to_rle against pycocotools",
            name,
            lambda: ops.masks_to_rle(inputs),  # noqa: B023
            pytorch=coco and (lambda: coco.encode(readable)),
            layout=layout,
            dtype="bool",
            bytes=masks.numel(),
            quick=quick and layout == "rows",
        )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    import torchvision
    from torchvision.models.detection.roi_heads import paste_masks_in_image

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    count = COUNT_ON_GPU if on_gpu else COUNT
    boxes = proposals(generator, count, WIDTH, HEIGHT).to(device)
    masks = ellipses(count, CELLS)[:, None].to(device)
    shape = (HEIGHT, WIDTH)
    pixels = count * HEIGHT * WIDTH
    yield Case(
        "paste_masks_in_image",
        f"{count} of {CELLS} x {CELLS} on {HEIGHT} x {WIDTH:,}",
        lambda: ops.paste_masks_in_image(masks, boxes, shape),
        # Pixels differ: torchvision rounds the box corners to integers.
        lambda: paste_masks_in_image(masks, boxes, shape) > 0.5,
        bytes=pixels,
        bandwidth=on_gpu,
    )
    pasted = ops.paste_masks_in_image(masks, boxes, shape)
    yield Case(
        "masks_to_boxes",
        f"{count} x {HEIGHT} x {WIDTH:,}",
        lambda: ops.masks_to_boxes(pasted),
        lambda: torchvision.ops.masks_to_boxes(pasted),
        dtype="bool",
        bytes=pixels,
        bandwidth=on_gpu,
        quick=True,
    )
    yield from _run_lengths(f"{count} x {HEIGHT} x {WIDTH:,}", pasted, quick=True)
    large = torch.zeros(4, 4 * HEIGHT, 4 * WIDTH, dtype=torch.bool, device=device)
    large[:, 500:2500, 700:4000] = True
    yield from _run_lengths(f"4 x {4 * HEIGHT:,} x {4 * WIDTH:,}", large)
    noise = torch.rand(10, HEIGHT, WIDTH, generator=generator).to(device) > 0.5
    yield from _run_lengths(f"10 x {HEIGHT} x {WIDTH:,} of noise", noise)
    small = ops.paste_masks_in_image(masks, boxes * (CELLS / WIDTH), (CELLS, CELLS))
    yield from _run_lengths(f"{count} x {CELLS} x {CELLS}", small)
