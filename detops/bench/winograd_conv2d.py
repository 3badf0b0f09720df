# SPDX-License-Identifier: MIT
"""Benchmarks of winograd_conv2d against PyTorch's convolution."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from .. import ops
from .case import Case

# Images, channels in and out, height, width: ResNet's, a pyramid's, a mask head's, and others'.
SIZES = (
    (1, 64, 64, 200, 336),
    (1, 128, 128, 100, 168),
    (1, 256, 256, 50, 84),
    (1, 512, 512, 25, 42),
    (1, 256, 256, 200, 336),
    (100, 256, 256, 14, 14),
    (1, 32, 32, 160, 160),
    (1, 256, 256, 7, 7),
    (1, 8, 8, 12, 13),
)


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
    generator = torch.Generator().manual_seed(0)
    for images, channels, outputs, height, width in SIZES:
        quick = channels == 8
        x = torch.randn(images, channels, height, width, generator=generator).to(device)
        x = x.to(memory_format=torch.channels_last)
        weight = torch.randn(outputs, channels, 3, 3, generator=generator).to(device)
        bias = torch.randn(outputs, generator=generator).to(device)
        yield Case(
            "winograd_conv2d",
            f"{images} x {channels} to {outputs} channels, {height} x {width}",
            lambda: ops.winograd_conv2d(x, weight, bias),  # noqa: B023
            pytorch=lambda: F.conv2d(x, weight, bias, padding=1),  # noqa: B023
            layout="channels_last",
            bytes=4 * (weight.numel() + x.numel() // channels * (channels + outputs)),
            flops=2 * 9 * outputs * x.numel(),
            quick=quick,
        )
