# SPDX-License-Identifier: MIT
"""Benchmarks of masked_conv2d against a full convolution multiplied by the mask."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case

OPS = ("masked_conv2d",)

# Channels in and out, height, width, percentage of active positions. Kernels are 3 x 3.
SIZES = ((256, 256, 100, 152, 2), (256, 256, 25, 38, 10), (256, 18, 50, 76, 20), (8, 8, 10, 12, 30))


def plain_masked_conv2d(features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolves everything, then zeroes the masked positions."""
    return F.conv2d(features, weight, bias, padding=1) * mask[:, None]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for channels, outputs, height, width, percent in SIZES:
        x = torch.randn(1, channels, height, width, generator=generator).to(device)
        weight = torch.randn(outputs, channels, 3, 3, generator=generator).to(device)
        bias = torch.randn(outputs, generator=generator).to(device)
        # Smooth noise makes the active positions blobs, like objects.
        noise = torch.rand(1, 1, height // 4 + 1, width // 4 + 1, generator=generator)
        noise = F.interpolate(noise, (height, width), mode="bilinear")[:, 0]
        mask = (noise > noise.quantile(1 - percent / 100)).to(device)
        active = int(mask.sum())
        yield Case(
            "masked_conv2d",
            f"{channels} to {outputs} channels, {height} x {width}, {percent}% of the places",
            lambda: ops.masked_conv2d(x, mask, weight, bias, padding=1),  # noqa: B023
            pytorch=lambda: plain_masked_conv2d(x, mask, weight, bias),  # noqa: B023
            bytes=4 * (weight.numel() + outputs * mask.numel()),
            flops=2 * 9 * channels * outputs * active,
            quick=channels == 8,
        )
