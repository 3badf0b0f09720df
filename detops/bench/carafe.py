# SPDX-License-Identifier: MIT
"""Benchmarks of carafe against unfold."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("carafe",)

# Images, channels, height, width, kernel, groups and scale: pyramid levels, a mask head, other
# kernels and a single channel.
SIZES = (
    (1, 256, 50, 76, 5, 1, 2),
    (1, 256, 13, 19, 5, 1, 2),
    (16, 256, 14, 14, 5, 1, 2),
    (1, 64, 40, 40, 3, 4, 3),
    (1, 1, 20, 20, 5, 1, 2),
    (1, 4, 4, 4, 3, 1, 2),
)


def plain_carafe(features: Tensor, masks: Tensor, kernel: int, groups: int, scale: int) -> Tensor:
    """Computes the weighted sum over unfolded neighbourhoods, one per output pixel."""
    images, channels, height, width = features.shape
    patches = F.unfold(features, kernel, padding=kernel // 2)
    patches = patches.view(images, groups, channels // groups, kernel**2, height, 1, width, 1)
    shape = (images, groups, 1, kernel**2, height, scale, width, scale)
    weighted = (patches * masks.view(shape)).sum(3)
    return weighted.view(images, channels, scale * height, scale * width)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for images, channels, height, width, *sizes in SIZES:
        kernel, groups, scale = sizes
        x = torch.randn(images, channels, height, width, generator=generator).to(device)
        taps = (images, groups * kernel**2, scale * height, scale * width)
        masks = torch.randn(taps, generator=generator).to(device)
        leaves = (x.clone().requires_grad_(), masks.clone().requires_grad_())
        ours = ops.carafe(*leaves, kernel, groups, scale)
        theirs = plain_carafe(*leaves, kernel, groups, scale)
        grad = torch.randn(ours.shape, generator=generator).to(device)
        name = f"{images} x {channels} x {height} x {width}, kernel {kernel}, scale {scale}"
        products = ours.numel() * kernel**2
        traffic = 4 * (x.numel() + masks.numel() + grad.numel())
        yield Case(
            "carafe forward",
            name,
            lambda: ops.carafe(x, masks, *sizes),  # noqa: B023
            pytorch=lambda: plain_carafe(x, masks, *sizes),  # noqa: B023
            bytes=traffic,
            flops=2 * products,
            quick=height == 13,
        )
        yield Case(
            "carafe backward",
            name,
            gradients(ours, leaves, grad),
            pytorch=gradients(theirs, leaves, grad),
            bytes=2 * traffic,
            flops=4 * products,
        )
