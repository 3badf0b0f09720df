# SPDX-License-Identifier: MIT
"""Benchmarks of corner_pool against torch.cummax, which mmcv uses."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("corner_pool",)

SIZES = ((1, 128, 128, 128), (2, 128, 32, 32), (1, 1, 128, 128), (1, 2, 5, 6))


def plain_corner_pool(input: Tensor, mode: str) -> Tensor:
    """Computes the running maximum; flips the feature map for modes that scan from the end."""
    dim, reverse = (2 if mode in ("top", "bottom") else 3), mode in ("top", "left")
    flipped = input.flip(dim) if reverse else input
    pooled = torch.cummax(flipped, dim).values
    return pooled.flip(dim) if reverse else pooled


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for size in SIZES:
        for mode in ("top", "bottom", "left", "right"):
            x = torch.randn(size, generator=generator).to(device)
            leaf = x.clone().requires_grad_()
            output, their_output = ops.corner_pool(leaf, mode), plain_corner_pool(leaf, mode)
            grad = torch.randn(size, generator=generator).to(device)
            name = f"{mode}, {' x '.join(map(str, size))}"
            yield Case(
                "corner_pool forward",
                name,
                lambda: ops.corner_pool(x, mode),  # noqa: B023
                pytorch=lambda: plain_corner_pool(x, mode),  # noqa: B023
                bytes=8 * x.numel(),
                quick=size[1] == 128 and size[0] == 2,
            )
            yield Case(
                "corner_pool backward",
                name,
                gradients(output, leaf, grad),
                pytorch=gradients(their_output, leaf, grad),
                bytes=16 * x.numel(),
            )
