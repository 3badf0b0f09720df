# SPDX-License-Identifier: MIT
"""Benchmarks of match_boxes, box_iou and related overlaps, for all pairs and for matched pairs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, plain_iou, uniform

OPS = ("box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou", "match_boxes")


def plain_iof(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Computes intersection over the area of the first box in plain PyTorch."""
    low = torch.maximum(boxes1[:, None, :2], boxes2[:, :2])
    high = torch.minimum(boxes1[:, None, 2:], boxes2[:, 2:])
    return (high - low).clamp(min=0).prod(2) / (boxes1[:, 2:] - boxes1[:, :2]).prod(1)[:, None]


def plain_aligned(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Computes the IoU of matched pairs in plain PyTorch."""
    low = torch.maximum(boxes1[:, :2], boxes2[:, :2])
    high = torch.minimum(boxes1[:, 2:], boxes2[:, 2:])
    intersection = (high - low).clamp(min=0).prod(1)
    area1 = (boxes1[:, 2:] - boxes1[:, :2]).prod(1)
    area2 = (boxes2[:, 2:] - boxes2[:, :2]).prod(1)
    return intersection / (area1 + area2 - intersection)


def _modes(generator: torch.Generator, device: torch.device) -> Iterator[Case]:
    for count in (10, 2000):
        a = uniform(generator, count)[0].to(device)
        b = uniform(generator, count)[0].to(device)
        yield Case(
            "box_iou",
            f"{count:,} x {count:,}, iof",
            lambda: ops.box_iou(a, b, mode="iof"),  # noqa: B023
            pytorch=lambda: plain_iof(a, b),  # noqa: B023
            bytes=4 * count * count,
        )
    for count in (10, 100_000):
        a = uniform(generator, count)[0].to(device).requires_grad_()
        b = (a + torch.rand(count, 4, device=device) * 5).detach().requires_grad_()
        grad = torch.ones(count, device=device)
        yield Case(
            "box_iou aligned forward",
            f"{count:,} pairs",
            lambda: ops.box_iou(a, b, aligned=True),  # noqa: B023
            pytorch=lambda: plain_aligned(a, b),  # noqa: B023
            bytes=36 * count,
        )
        yield Case(
            "box_iou aligned forward and backward",
            f"{count:,} pairs",
            lambda: torch.autograd.grad(ops.box_iou(a, b, aligned=True), (a, b), grad),  # noqa: B023
            pytorch=lambda: torch.autograd.grad(plain_aligned(a, b), (a, b), grad),  # noqa: B023
            bytes=104 * count,
        )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    import torchvision

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    for count in (100, 500, 2000, *((10_000,) if on_gpu else ())):
        a = uniform(generator, count)[0].to(device)
        b = uniform(generator, count)[0].to(device)
        yield Case(
            "box_iou",
            f"{count:,} x {count:,}",
            lambda: ops.box_iou(a, b),  # noqa: B023
            lambda: torchvision.ops.box_iou(a, b),  # noqa: B023
            lambda: plain_iou(a, b),  # noqa: B023
            bytes=4 * count * count,
            flops=14 * count * count,
            quick=count == 2000,
            series="box_iou, N x N",
            size=count,
            bandwidth=count == 10_000,
        )
    for name in ("generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        yield Case(
            name,
            f"{count:,} x {count:,}",
            lambda: getattr(ops, name)(a, b),  # noqa: B023
            lambda: getattr(torchvision.ops, name)(a, b),  # noqa: B023
            bytes=4 * len(a) * len(b),
            flops=26 * len(a) * len(b),
        )
    yield from _modes(torch.Generator().manual_seed(1), device)
    anchors = uniform(generator, 100_000)[0].to(device)
    truth = a[:100]
    yield Case(
        "match_boxes",
        "100,000 x 100",
        lambda: ops.match_boxes(anchors, truth),
        lambda: torchvision.ops.box_iou(anchors, truth).max(1),
        lambda: plain_iou(anchors, truth).max(1),
        bytes=len(anchors) * (16 + 12),
        flops=14 * len(anchors) * len(truth),
    )
