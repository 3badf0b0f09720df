# SPDX-License-Identifier: MIT
"""Benchmarks of roi_align_max against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients, proposals
from .deform_roi_pool import SAMPLING, SIZE, SIZES, STRIDE, by_rois, plain_samples

OPS = ("roi_align_max",)


def plain_roi_align_max(input: Tensor, boxes: Tensor) -> Tensor:
    """Pools one image: samples everything at once, then takes maxima."""
    return by_rois(F.max_pool2d(plain_samples(input, boxes), SAMPLING), len(boxes))


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
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
        traffic = 4 * (x.numel() + grad.numel())
        yield Case(
            "roi_align_max forward",
            name,
            lambda: ours(x),  # noqa: B023
            pytorch=lambda: plain(x),  # noqa: B023
            bytes=traffic,
            flops=8 * grad.numel() * SAMPLING**2,
            quick=rois == 64,
        )
        yield Case(
            "roi_align_max backward",
            name,
            gradients(output, leaf, grad),
            pytorch=gradients(their_output, leaf, grad),
            bytes=traffic,
            flops=8 * grad.numel(),
        )
