# SPDX-License-Identifier: MIT
"""The benchmark case, and input generators that several benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], Any]


@dataclass
class Case:
    """One row of the table: the same work in up to three implementations.

    ``bytes`` and ``flops`` are lower bounds on memory traffic and arithmetic. ``quick`` marks the
    rows of a short run. ``series`` and ``size``, the number of boxes, place the row in the plot.
    ``bandwidth`` marks cases that should run at memory bandwidth: too large for a cache, and with
    little arithmetic.
    """

    op: str
    name: str
    ours: Call
    torchvision: Call | None = None
    pytorch: Call | None = None
    layout: str = ""
    dtype: str = "float32"
    bytes: int = 0
    flops: int = 0
    quick: bool = False
    series: str = ""
    size: int = 0
    bandwidth: bool = False


def clustered(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Returns about 20 boxes around each of ``count / 20`` objects, with random scores."""
    objects = max(1, count // 20)
    centre = torch.rand(objects, 2, generator=generator) * 1000
    object_index = torch.randint(0, objects, (count,), generator=generator)
    centre = centre[object_index] + torch.randn(count, 2, generator=generator) * 6
    side = 20 + torch.rand(count, 2, generator=generator) * 60
    boxes = torch.cat([centre - side / 2, centre + side / 2], 1)
    return boxes, torch.rand(count, generator=generator)


def uniform(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Returns boxes of 10 to 100 pixels, uniform in a 1,000 x 1,000 image, with random scores."""
    centre = torch.rand(count, 2, generator=generator) * 1000
    side = 10 + torch.rand(count, 2, generator=generator) * 90
    boxes = torch.cat([centre - side / 2, centre + side / 2], 1)
    return boxes, torch.rand(count, generator=generator)


def dense(generator: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Returns a dense detector's output: boxes near the objects closest to random positions."""
    centre = torch.rand(100, 2, generator=generator) * 1000
    size = torch.exp(torch.rand(100, 2, generator=generator) * 2 + 3)
    position = torch.rand(count, 2, generator=generator) * 1000
    object_index = torch.cdist(position, centre).argmin(1)
    found = (
        centre[object_index]
        + torch.randn(count, 2, generator=generator) * size[object_index] * 0.25
    )
    side = size[object_index] * torch.exp(torch.randn(count, 2, generator=generator) * 0.25)
    boxes = torch.cat([found - side / 2, found + side / 2], 1)
    return boxes, torch.rand(count, generator=generator)


def proposals(generator: torch.Generator, count: int, width: int, height: int) -> Tensor:
    """Returns boxes of about 16 to 540 pixels clipped to the image, with log-uniform sizes."""
    size = torch.exp(torch.rand(count, 1, generator=generator) * 3.5 + 2.8)
    side = size * torch.exp(torch.randn(count, 2, generator=generator) * 0.3)
    extent = torch.tensor([width, height])
    centre = torch.rand(count, 2, generator=generator) * extent
    boxes = torch.cat([centre - side / 2, centre + side / 2], 1)
    return boxes.clamp(min=0).minimum(extent.repeat(2))


def gradients(output: Tensor, leaves: Tensor | Sequence[Tensor], grad: Tensor) -> Call:
    """Returns a repeatable backward pass from ``output`` to ``leaves``."""
    return lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True)


def plain_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Computes the IoU of all pairs in plain PyTorch."""
    low = torch.maximum(boxes1[:, None, :2], boxes2[:, :2])
    high = torch.minimum(boxes1[:, None, 2:], boxes2[:, 2:])
    intersection = (high - low).clamp(min=0).prod(2)
    area1 = (boxes1[:, 2:] - boxes1[:, :2]).prod(1)
    area2 = (boxes2[:, 2:] - boxes2[:, :2]).prod(1)
    return intersection / (area1[:, None] + area2 - intersection)
