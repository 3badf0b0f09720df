# SPDX-License-Identifier: MIT
"""Benchmarks of roi_align_max against grid_sample, which is how one writes it in PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, proposals

SIZE, SAMPLING, STRIDE = 7, 2, 16
# RoIs, channels, height and width.
SIZES = ((512, 256, 50, 84), (64, 256, 50, 84), (512, 1, 50, 84), (1, 8, 10, 12))


def plain_roi_align_max(input: Tensor, boxes: Tensor) -> Tensor:
    """Of one image: all samples at once, then their maxima; zeros begin at the border."""
    _, channels, height, width = input.shape
    corner, side = boxes[:, 1:3] / STRIDE, (boxes[:, 3:] - boxes[:, 1:3]) / STRIDE
    steps = (torch.arange(SIZE * SAMPLING, device=input.device) + 0.5) / (SIZE * SAMPLING)
    y = steps.view(1, -1, 1).expand(len(boxes), -1, SIZE * SAMPLING)
    x = steps.view(1, 1, -1).expand_as(y)
    places = corner[:, None, None] + torch.stack([x, y], -1) * side[:, None, None]
    grid = 2 * places / places.new_tensor([width, height]) - 1
    samples = F.grid_sample(input, grid.view(1, -1, SIZE * SAMPLING, 2), align_corners=False)
    bins = F.max_pool2d(samples, SAMPLING).view(channels, len(boxes), SIZE, SIZE)
    return bins.transpose(0, 1).contiguous()


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
    generator = torch.Generator().manual_seed(0)
    for rois, channels, height, width in SIZES:
        x = torch.randn(1, channels, height, width, generator=generator).to(device)
        boxes = proposals(generator, rois, (width - 2) * STRIDE, (height - 2) * STRIDE)
        boxes = torch.cat([torch.zeros(rois, 1), boxes + STRIDE], 1).to(device)
        leaf = x.clone().requires_grad_()

        def ours(x: Tensor) -> Tensor:
            return ops.roi_align_max(x, boxes, SIZE, 1 / STRIDE, SAMPLING, aligned=True)  # noqa: B023

        def plain(x: Tensor) -> Tensor:
            return plain_roi_align_max(x, boxes)  # noqa: B023

        output, their_output = ours(leaf), plain(leaf)
        grad = torch.randn(output.shape, generator=generator).to(device)
        name = f"{rois} RoIs {SIZE}x{SIZE}, {channels} x {height} x {width}"
        moved = 4 * (x.numel() + grad.numel())
        yield Case(
            "roi_align_max forward",
            name,
            lambda: ours(x),  # noqa: B023
            pytorch=lambda: plain(x),  # noqa: B023
            bytes=moved,
            flops=8 * grad.numel() * SAMPLING**2,
            quick=rois == 64,
        )
        yield Case(
            "roi_align_max backward",
            name,
            lambda: torch.autograd.grad(output, leaf, grad, retain_graph=True)[0],  # noqa: B023
            pytorch=lambda: torch.autograd.grad(their_output, leaf, grad, retain_graph=True)[0],  # noqa: B023
            bytes=moved,
            flops=8 * grad.numel(),
        )
