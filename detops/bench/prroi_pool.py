# SPDX-License-Identifier: MIT
"""Benchmarks of prroi_pool against matrix products."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, gradients, proposals

OPS = ("prroi_pool",)

SIZE, STRIDE = 7, 16
# RoIs, channels, height and width.
SIZES = ((256, 256, 50, 84), (32, 256, 50, 84), (256, 1, 50, 84), (1, 8, 10, 12))


def _weights(low: Tensor, high: Tensor, size: int) -> Tensor:
    """Returns each pixel's weight in each bin ``[K, bins, size]``, an integral of hat functions."""
    steps = torch.arange(SIZE + 1, device=low.device) / SIZE
    ends = low[:, None] + steps * (high - low)[:, None]
    x = ends[..., None] - torch.arange(size, device=low.device)
    total = torch.where(x <= 0, 0.5 * (x + 1).clamp(0) ** 2, 1 - 0.5 * (1 - x).clamp(0) ** 2)
    return total.diff(dim=1) * SIZE / (high - low)[:, None, None]


def plain_prroi_pool(input: Tensor, boxes: Tensor) -> Tensor:
    """Pools one image."""
    x1, y1, x2, y2 = (boxes[:, 1:] / STRIDE).unbind(1)
    rows, cols = _weights(y1, y2, input.size(2)), _weights(x1, x2, input.size(3))
    return rows[:, None] @ (input @ cols.transpose(1, 2)[:, None])


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for rois, channels, height, width in SIZES:
        x = torch.randn(1, channels, height, width, generator=generator).to(device)
        boxes = proposals(generator, rois, (width - 2) * STRIDE, (height - 2) * STRIDE)
        boxes = torch.cat([torch.zeros(rois, 1), boxes + STRIDE], 1).to(device)
        leaves = [x.clone().requires_grad_(), boxes.clone().requires_grad_()]

        def ours(x: Tensor, boxes: Tensor) -> Tensor:
            return ops.prroi_pool(x, boxes, SIZE, 1 / STRIDE)

        output, their_output = ours(*leaves), plain_prroi_pool(*leaves)
        grad = torch.randn(output.shape, generator=generator).to(device)
        name = f"{rois} RoIs {SIZE}x{SIZE}, {channels} x {height} x {width}"
        traffic = 4 * (x.numel() + grad.numel())
        yield Case(
            "prroi_pool forward",
            name,
            lambda: ours(x, boxes),  # noqa: B023
            pytorch=lambda: plain_prroi_pool(x, boxes),  # noqa: B023
            bytes=traffic,
            quick=rois == 32,
        )
        yield Case(
            "prroi_pool backward",
            name,
            gradients(output, leaves, grad),
            pytorch=gradients(their_output, leaves, grad),
            bytes=2 * traffic,
        )
