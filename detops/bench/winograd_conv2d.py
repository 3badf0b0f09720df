# SPDX-License-Identifier: MIT
"""Benchmarks of winograd_conv2d against PyTorch's convolution."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case

OPS = ("winograd_conv2d",)

# Images, channels in and out, height, width: ResNet, a pyramid, a mask head, and others.
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
# Feature map sizes that occur in training: a stage on small images, and a mask head.
GRADIENTS = ((50, 84), (14, 14))


def _plain_gradient(grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    once, only_weights = [1, 1], [False, True, False]
    gradients = torch.ops.aten.convolution_backward(
        grad, x, weight, None, once, once, once, False, [0, 0], 1, only_weights
    )
    return gradients[1]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
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
        if (height, width) not in GRADIENTS:
            continue
        grad = torch.randn(images, outputs, height, width, generator=generator).to(device)
        grad = grad.to(memory_format=torch.channels_last)
        yield Case(
            "winograd_conv2d backward of the weights",
            f"{images} x {channels} to {outputs} channels, {height} x {width}",
            partial(torch.ops.detops.winograd_conv2d_backward_weight, grad, x, [1, 1]),
            pytorch=partial(_plain_gradient, grad, x, weight),
            layout="channels_last",
            bytes=4 * (weight.numel() + x.numel() // channels * (channels + outputs)),
            flops=2 * 9 * outputs * x.numel(),
        )
