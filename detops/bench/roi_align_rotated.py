# SPDX-License-Identifier: MIT
"""Benchmarks of roi_align_rotated and deform_psroi_pooling, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C, ops
from .case import Call, Case, gradients

OPS = ("roi_align_rotated", "deform_psroi_pooling")

CHANNELS = 256
SCALE = 0.25
COUNT = 500
SIZE = 7


def plain_roi_align_rotated(x: Tensor, rois: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """Computes it for one image in plain PyTorch: grid_sample of all samples, then the mean."""
    height, width = x.shape[2:]
    position = (torch.arange(size * ratio, device=x.device) + 0.5) / (size * ratio) - 0.5
    centre_x, centre_y, w, h, angle = (column.view(-1, 1, 1) for column in rois[:, 1:].unbind(1))
    cos, sin = (angle * (math.pi / 180)).cos(), (angle * (math.pi / 180)).sin()
    across, down = position * w * scale, position.view(-1, 1) * h * scale
    at_x = across * cos + down * sin + centre_x * scale
    at_y = down * cos - across * sin + centre_y * scale
    grid = torch.stack([at_x * (2 / width) - 1, at_y * (2 / height) - 1], 3).flatten(0, 1)
    inside = (at_x >= -0.5) & (at_x <= width + 0.5) & (at_y >= -0.5) & (at_y <= height + 0.5)
    samples = F.grid_sample(x, grid[None], padding_mode="border", align_corners=False)
    samples = samples * inside.flatten(0, 1)
    samples = samples.view(-1, len(rois), size, ratio, size, ratio)
    return samples.mean((3, 5)).transpose(0, 1)


def _rois(generator: torch.Generator, width: int, height: int) -> Tensor:
    """Returns rows of batch index, centre, sides of 40 to 100 pixels and angle."""
    centre = torch.rand(COUNT, 2, generator=generator) * torch.tensor([width, height]) / SCALE
    side = 40 + torch.rand(COUNT, 2, generator=generator) * 60
    angle = torch.rand(COUNT, 1, generator=generator) * 360
    return torch.cat([torch.zeros(COUNT, 1), centre, side, angle], 1)


def _rotated(x: Tensor, rois: Tensor, names: dict[str, Any], plain: bool) -> Iterator[Case]:
    form = torch.channels_last if names["layout"] == "channels_last" else torch.contiguous_format
    grad = torch.randn(COUNT, CHANNELS, SIZE, SIZE, device=x.device).contiguous(memory_format=form)
    leaf = x.detach().requires_grad_()
    their_backward: Call | None = None
    if plain:
        pooled = plain_roi_align_rotated(leaf, rois, SIZE, SCALE, 2)

        def their_backward() -> Tensor:
            return torch.autograd.grad(pooled, leaf, grad, retain_graph=True)[0]

    yield Case(
        "roi_align_rotated forward",
        ours=lambda: ops.roi_align_rotated(x, rois, SIZE, SCALE, 2),
        pytorch=(lambda: plain_roi_align_rotated(x, rois, SIZE, SCALE, 2)) if plain else None,
        **names,
    )
    yield Case(
        "roi_align_rotated backward",
        ours=lambda: _C.roi_align_rotated_backward(grad, rois, SCALE, SIZE, SIZE, *x.shape, 2),
        pytorch=their_backward,
        **names,
    )


def _deformed(x: Tensor, rois: Tensor, offset: Tensor, names: dict[str, Any]) -> Iterator[Case]:
    half = rois[:, 3:5] / 2
    boxes = torch.cat([rois[:, :1], rois[:, 1:3] - half, rois[:, 1:3] + half], 1)
    arguments = (boxes, offset, SIZE, SCALE, CHANNELS, 1, SIZE, 4, 0.1)
    leaves = [x.detach().requires_grad_(), offset.detach().requires_grad_()]
    pooled = ops.deform_psroi_pooling(leaves[0], boxes, leaves[1], *arguments[2:])
    yield Case(
        "deform_psroi_pooling forward",
        ours=lambda: ops.deform_psroi_pooling(x, *arguments),
        **names,
    )
    yield Case(
        "deform_psroi_pooling backward",
        ours=gradients(pooled, leaves, torch.randn_like(pooled)),
        **names,
    )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for height, width in ((50, 84), (200, 336)):
        wide = torch.randn(1, CHANNELS, height, width, generator=generator).to(device)
        rois = _rois(generator, width, height).to(device)
        offset = torch.randn(COUNT, 2, SIZE, SIZE, generator=generator).to(device)
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            x = wide.contiguous(memory_format=form)
            names: dict[str, Any] = dict(
                name=f"{COUNT} RoIs {SIZE}x{SIZE}, {CHANNELS} x {height} x {width}",
                layout="channels_last" if last else "NCHW",
                bytes=4 * (x.numel() + COUNT * CHANNELS * SIZE**2),
            )
            small = height == 50
            yield from _rotated(x, rois, names | {"quick": small}, small and not last)
            yield from _deformed(x, rois, offset, names)
