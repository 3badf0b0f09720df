# SPDX-License-Identifier: MIT
"""Benchmarks of deform_roi_pool against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients, proposals

OPS = ("deform_roi_pool",)

SIZE, SAMPLING, GAMMA, STRIDE = 7, 2, 0.1, 16
# RoIs, channels, height and width.
SIZES = ((512, 256, 50, 84), (64, 256, 50, 84), (512, 1, 50, 84), (1, 8, 10, 12))


def plain_samples(input: Tensor, boxes: Tensor, shifts: Tensor | None = None) -> Tensor:
    """Samples one image with grid_sample into ``[1, C, K * rows, columns]``; pads with zeros.

    ``shifts`` ``[K, 2, rows, columns]`` are offsets in units of the box sides.
    """
    height, width = input.shape[2:]
    corner, side = boxes[:, 1:3] / STRIDE, (boxes[:, 3:] - boxes[:, 1:3]) / STRIDE
    steps = (torch.arange(SIZE * SAMPLING, device=input.device) + 0.5) / (SIZE * SAMPLING)
    y = steps.view(1, -1, 1).expand(len(boxes), -1, SIZE * SAMPLING)
    x = steps.view(1, 1, -1).expand_as(y)
    positions = torch.stack([x, y], -1)
    if shifts is not None:
        positions = positions + shifts.permute(0, 2, 3, 1)
    positions = corner[:, None, None] + positions * side[:, None, None]
    grid = 2 * positions / positions.new_tensor([width, height]) - 1
    return F.grid_sample(input, grid.view(1, -1, SIZE * SAMPLING, 2), align_corners=False)


def by_rois(bins: Tensor, rois: int) -> Tensor:
    """Reshapes bins ``[1, C, K * SIZE, SIZE]`` to the layout of pooled RoIs."""
    return bins.view(-1, rois, SIZE, SIZE).transpose(0, 1).contiguous()


def plain_deform_roi_pool(input: Tensor, boxes: Tensor, offset: Tensor) -> Tensor:
    """Pools one image: samples everything at once, then averages."""
    shifts = (GAMMA * offset).repeat_interleave(SAMPLING, 2).repeat_interleave(SAMPLING, 3)
    samples = plain_samples(input, boxes, shifts)
    return by_rois(F.avg_pool2d(samples, SAMPLING), len(boxes))


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    sizes = (SIZE, 1 / STRIDE, SAMPLING, GAMMA)
    for rois, channels, height, width in SIZES:
        x = torch.randn(1, channels, height, width, generator=generator).to(device)
        boxes = proposals(generator, rois, (width - 2) * STRIDE, (height - 2) * STRIDE)
        boxes = torch.cat([torch.zeros(rois, 1), boxes + STRIDE], 1).to(device)
        # Small offsets stay within the feature map, where both versions agree.
        offset = torch.randn(rois, 2, SIZE, SIZE, generator=generator).to(device) / 100
        leaves = [x.clone().requires_grad_(), offset.clone().requires_grad_()]

        def ours(x: Tensor, offset: Tensor) -> Tensor:
            return ops.deform_roi_pool(x, boxes, offset, *sizes)  # noqa: B023

        def plain(x: Tensor, offset: Tensor) -> Tensor:
            return plain_deform_roi_pool(x, boxes, offset)  # noqa: B023

        output, their_output = ours(*leaves), plain(*leaves)
        grad = torch.randn(output.shape, generator=generator).to(device)
        name = f"{rois} RoIs {SIZE}x{SIZE}, {channels} x {height} x {width}"
        traffic = 4 * (x.numel() + grad.numel())
        samples = grad.numel() * SAMPLING**2
        yield Case(
            "deform_roi_pool forward",
            name,
            lambda: ours(x, offset),  # noqa: B023
            pytorch=lambda: plain(x, offset),  # noqa: B023
            bytes=traffic,
            flops=8 * samples,
            quick=rois == 64,
        )
        yield Case(
            "deform_roi_pool backward",
            name,
            gradients(output, leaves, grad),
            pytorch=gradients(their_output, leaves, grad),
            bytes=2 * traffic,
            flops=16 * samples,
        )
