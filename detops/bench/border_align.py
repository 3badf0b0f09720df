# SPDX-License-Identifier: MIT
"""Benchmarks of border_align against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("border_align",)

POOL = 10
# Channels per border, height and width. There is one box per pixel.
SIZES = ((128, 50, 84), (128, 13, 21), (1, 50, 84), (8, 4, 5))


def plain_border_align(input: Tensor, boxes: Tensor) -> Tensor:
    """Samples each border as one image, then takes maxima; zero padding starts at the border."""
    images, planes, height, width = input.shape
    steps = torch.arange(POOL + 1, device=input.device) / POOL
    x1, y1, x2, y2 = boxes.unsqueeze(-1).unbind(2)
    right, down = x1 + steps * (x2 - x1), y1 + steps * (y2 - y1)
    left, up = x2 - steps * (x2 - x1), y2 - steps * (y2 - y1)
    x = torch.stack([right, x1.expand_as(down), left, x2.expand_as(up)], 1)
    y = torch.stack([y1.expand_as(right), down, y2.expand_as(left), up], 1)
    positions = (torch.stack([x, y], -1) + 0.5) / input.new_tensor([width, height])
    features = input.view(images * 4, planes // 4, height, width)
    samples = F.grid_sample(features, (2 * positions - 1).flatten(0, 1), align_corners=False)
    return samples.amax(-1).view(images, 4, planes // 4, -1).permute(0, 2, 3, 1).contiguous()


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for channels, height, width in SIZES:
        count = height * width
        x = torch.randn(1, 4 * channels, height, width, generator=generator).to(device)
        extent = torch.tensor([width - 1.0, height - 1.0]).repeat(2)
        ends = torch.rand(1, count, 2, 2, generator=generator).sort(2).values
        boxes = (ends.flatten(2) * extent).to(device)
        leaf = x.clone().requires_grad_()
        output = ops.border_align(leaf, boxes, POOL)
        their_output = plain_border_align(leaf, boxes)
        grad = torch.randn(output.shape, generator=generator).to(device)
        name = f"{count:,} boxes, 4 x {channels} x {height} x {width}"
        traffic = 4 * (x.numel() + grad.numel())
        yield Case(
            "border_align forward",
            name,
            lambda: ops.border_align(x, boxes, POOL),  # noqa: B023
            pytorch=lambda: plain_border_align(x, boxes),  # noqa: B023
            bytes=traffic,
            flops=8 * grad.numel() * (POOL + 1),
            quick=count < 300 and channels > 8,
        )
        yield Case(
            "border_align backward",
            name,
            gradients(output, leaf, grad),
            pytorch=gradients(their_output, leaf, grad),
            bytes=traffic,
            flops=8 * grad.numel(),
        )
