# SPDX-License-Identifier: MIT
"""Benchmarks of rotated_feature_align against grid_sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("rotated_feature_align",)

SCALE = 1 / 8
# Channels, height and width.
SIZES = ((256, 128, 128), (256, 16, 16), (64, 50, 84), (16, 50, 84), (1, 128, 128), (8, 4, 5))


def plain_rotated_feature_align(features: Tensor, boxes: Tensor, points: int) -> Tensor:
    """Samples everything at once, then sums."""
    height, width = features.shape[2:]
    x, y, w, h, angle = (boxes * boxes.new_tensor([SCALE] * 4 + [math.pi / 180])).unbind(3)
    if points == 5:
        cos, sin = angle.cos() / 2, angle.sin() / 2
        across, down = cos * w + sin * h, sin * w - cos * h
        up, left = cos * h + sin * w, sin * h - cos * w
        x = torch.stack([x, x + across, x + left, x - across, x - left], 3)
        y = torch.stack([y, y - down, y + up, y + down, y - up], 3)
    else:
        x, y = x.unsqueeze(3), y.unsqueeze(3)
    grid = torch.stack([x * (2 / (width - 1)) - 1, y * (2 / (height - 1)) - 1], 4)
    inside = (x >= -1) & (x <= width) & (y >= -1) & (y <= height)
    samples = F.grid_sample(features, grid.flatten(2, 3), padding_mode="border", align_corners=True)
    samples = samples * inside.flatten(2).unsqueeze(1)
    return features + samples.unflatten(3, (-1, points)).sum(4)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for channels, height, width in SIZES:
        for points, last in ((1, False), (5, False), (5, True)):
            form = torch.channels_last if last else torch.contiguous_format
            size = (1, channels, height, width)
            x = torch.randn(size, generator=generator).to(device).contiguous(memory_format=form)
            # Boxes lie around their own pixels, with sides of a few feature map pixels.
            rows, cols = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            centre = torch.stack([cols, rows], 2) + torch.randn(
                height, width, 2, generator=generator
            )
            side = 2 + 6 * torch.rand(height, width, 2, generator=generator)
            angle = 360 * torch.rand(height, width, 1, generator=generator)
            boxes = torch.cat([centre / SCALE, side / SCALE, angle], 2)[None].to(device)
            leaf = x.clone().requires_grad_()
            output = ops.rotated_feature_align(leaf, boxes, SCALE, points)
            their_output = plain_rotated_feature_align(leaf, boxes, points)
            grad = torch.randn(size, generator=generator).to(device).contiguous(memory_format=form)
            name = f"{points} point{'s' * (points > 1)}, {channels} x {height} x {width}"
            common: dict[str, Any] = dict(
                layout="channels_last" if last else "NCHW", bytes=8 * x.numel()
            )
            yield Case(
                "rotated_feature_align forward",
                name,
                lambda: ops.rotated_feature_align(x, boxes, SCALE, points),  # noqa: B023
                pytorch=lambda: plain_rotated_feature_align(x, boxes, points),  # noqa: B023
                flops=8 * points * x.numel(),
                quick=channels == 64,
                **common,
            )
            yield Case(
                "rotated_feature_align backward",
                name,
                gradients(output, leaf, grad),
                pytorch=gradients(their_output, leaf, grad),
                flops=8 * points * x.numel(),
                **common,
            )
