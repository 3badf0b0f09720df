# SPDX-License-Identifier: MIT
"""Benchmarks of point_sample against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("point_sample",)

# Images, channels, height, width and points: Mask2Former's losses, PointRend's head in training and
# its last inference steps, and a single small image.
SIZES = (
    (100, 1, 160, 160, 12_544),
    (2, 256, 200, 304, 2_744),
    (2, 256, 50, 76, 784),
    (8, 80, 14, 14, 196),
    (1, 4, 7, 7, 10),
)


def plain_point_sample(input: Tensor, points: Tensor) -> Tensor:
    """Samples with a grid of one row."""
    grid = 2 * points[:, None] - 1
    return F.grid_sample(input, grid, align_corners=False)[:, :, 0]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for images, channels, height, width, count in SIZES:
        x = torch.randn(images, channels, height, width, generator=generator).to(device)
        points = torch.rand(images, count, 2, generator=generator).to(device)
        grad = torch.randn(images, channels, count, generator=generator).to(device)
        leaf = x.clone().requires_grad_()
        ours, theirs = ops.point_sample(leaf, points), plain_point_sample(leaf, points)
        name = f"{images} x {channels} x {height} x {width}, {count:,} points"
        samples = images * channels * count
        yield Case(
            "point_sample forward",
            name,
            lambda: ops.point_sample(x, points),  # noqa: B023
            pytorch=lambda: plain_point_sample(x, points),  # noqa: B023
            bytes=4 * (min(x.numel(), 4 * samples) + samples + points.numel()),
            flops=7 * samples,
            quick=images == 2,
        )
        yield Case(
            "point_sample backward",
            name,
            gradients(ours, leaf, grad),
            pytorch=gradients(theirs, leaf, grad),
            bytes=4 * (x.numel() + samples + points.numel()),
            flops=8 * samples,
        )
