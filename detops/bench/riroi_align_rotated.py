# SPDX-License-Identifier: MIT
"""Benchmarks of riroi_align_rotated against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .case import Case, gradients
from .roi_align_rotated import plain_roi_align_rotated

OPS = ("riroi_align_rotated",)

SCALE = 0.25
ORIENTATIONS = 8
SIZE = 7
# RoIs, channels, height and width.
SIZES = ((500, 256, 50, 84), (20, 256, 50, 84), (500, 8, 50, 84), (1, 16, 13, 21))


def plain_riroi_align_rotated(x: Tensor, rois: Tensor) -> Tensor:
    """Pools with rotated RoIAlign, then interpolates between two orders of the orientations."""
    # riroi_align_rotated does not subtract half a pixel.
    shifted = rois + rois.new_tensor([0, 0.5 / SCALE, 0.5 / SCALE, 0, 0, 0])
    pooled = plain_roi_align_rotated(x, shifted, SIZE, SCALE, 2)
    pooled = pooled.unflatten(1, (-1, ORIENTATIONS))
    shift = rois[:, 5] * (ORIENTATIONS / 360)
    whole_shift = shift.floor()
    fraction = (shift - whole_shift).view(-1, 1, 1, 1, 1)
    order = torch.arange(ORIENTATIONS, device=x.device) - whole_shift.long().unsqueeze(1)

    def switched(order: Tensor) -> Tensor:
        return pooled.gather(
            2, (order % ORIENTATIONS).view(-1, 1, ORIENTATIONS, 1, 1).expand_as(pooled)
        )

    return ((1 - fraction) * switched(order) + fraction * switched(order + 1)).flatten(1, 2)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for count, channels, height, width in SIZES:
        wide = torch.randn(1, channels, height, width, generator=generator).to(device)
        centre = torch.rand(count, 2, generator=generator) * torch.tensor([width, height]) / SCALE
        side = 40 + torch.rand(count, 2, generator=generator) * 60
        angle = torch.rand(count, 1, generator=generator) * 360
        rois = torch.cat([torch.zeros(count, 1), centre, side, angle], 1).to(device)
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            x = wide.contiguous(memory_format=form)
            leaf = x.clone().requires_grad_()
            output = ops.riroi_align_rotated(leaf, rois, SIZE, SCALE, 2, ORIENTATIONS)
            their_output = plain_riroi_align_rotated(leaf, rois)
            grad = torch.randn(output.shape, generator=generator).to(device)
            grad = grad.contiguous(memory_format=form)
            name = f"{count} RoI{'s' * (count > 1)} {SIZE}x{SIZE}, {channels} x {height} x {width}"
            common: dict[str, Any] = dict(
                layout="channels_last" if last else "NCHW", bytes=4 * (x.numel() + grad.numel())
            )
            yield Case(
                "riroi_align_rotated forward",
                name,
                lambda: ops.riroi_align_rotated(x, rois, SIZE, SCALE, 2, ORIENTATIONS),  # noqa: B023
                pytorch=lambda: plain_riroi_align_rotated(x, rois),  # noqa: B023
                quick=channels == 8,
                **common,
            )
            yield Case(
                "riroi_align_rotated backward",
                name,
                gradients(output, leaf, grad),
                pytorch=gradients(their_output, leaf, grad),
                **common,
            )
