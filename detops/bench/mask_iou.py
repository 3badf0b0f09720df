# SPDX-License-Identifier: MIT
"""Benchmarks of mask_iou and mask_nms against a matrix product and against pycocotools."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, proposals
from .masks import ellipses

OPS = ("mask_iou", "mask_nms")

# Masks on each side, and their height and width: COCO evaluation, large and small, and mask heads.
SIZES = ((100, 20, 800, 1333), (100, 100, 200, 304), (300, 300, 28, 28), (4, 3, 28, 28))


def plain_mask_iou(masks1: Tensor, masks2: Tensor) -> Tensor:
    """Computes mask IoU with a matrix product."""
    a, b = masks1.flatten(1).float(), masks2.flatten(1).float()
    intersection = a @ b.T
    return intersection / (a.sum(1)[:, None] + b.sum(1) - intersection).clamp(min=1)


def plain_mask_nms(masks: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Computes all overlaps, then suppresses in a loop."""
    order = scores.sort(descending=True, stable=True).indices
    above = plain_mask_iou(masks[order], masks[order]) > threshold
    keep = torch.ones(len(order), dtype=torch.bool, device=masks.device)
    for i in range(len(order)):
        if keep[i]:
            keep[i + 1 :] &= ~above[i, i + 1 :]
    return order[keep]


def objects(generator: torch.Generator, count: int, height: int, width: int) -> Tensor:
    """Returns elliptical masks of many sizes."""
    boxes = proposals(generator, count, 1333, 800) * torch.tensor([width / 1333, height / 800] * 2)
    return ops.paste_masks_in_image(ellipses(count, 28)[:, None], boxes, (height, width))


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    try:
        from pycocotools import mask as coco
    except ImportError:
        coco = None
    generator = torch.Generator().manual_seed(0)
    for n, m, height, width in SIZES:
        first, second = objects(generator, n, height, width), objects(generator, m, height, width)
        scores = torch.rand(n, generator=generator).to(device)
        # pycocotools reads column-major masks.
        columns = [x.byte().mT.contiguous().permute(2, 1, 0).numpy() for x in (first, second)]
        first, second = first.to(device), second.to(device)
        size = f"of {height} x {width:,}"
        pixels = (n + m) * height * width

        def by_runs(columns=columns):
            return coco.iou(coco.encode(columns[0]), coco.encode(columns[1]), [0] * len(second))  # noqa: B023

        yield Case(
            "mask_iou",
            f"{n} x {m} {size}",
            lambda: ops.mask_iou(first, second),  # noqa: B023
            pytorch=lambda: plain_mask_iou(first, second),  # noqa: B023
            dtype="bool",
            bytes=pixels,
            quick=width == 304,
        )
        yield Case(
            "mask_iou against pycocotools",
            f"{n} x {m} {size}",
            lambda: ops.mask_iou(first, second),  # noqa: B023
            pytorch=coco and by_runs,
            dtype="bool",
            bytes=pixels,
        )
        yield Case(
            "mask_nms",
            f"{n} {size}, 0.5",
            lambda: ops.mask_nms(first, scores, 0.5),  # noqa: B023
            pytorch=lambda: plain_mask_nms(first, scores, 0.5),  # noqa: B023
            dtype="bool",
            bytes=n * height * width,
        )
