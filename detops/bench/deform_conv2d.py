# SPDX-License-Identifier: MIT
"""Benchmarks of deform_conv2d, forward and backward, next to a plain convolution."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("deform_conv2d",)

# Channels in and out, height, width, groups, masked, quick.
SIZES = (
    (64, 64, 64, 1, True, True),
    (64, 64, 64, 1, False, False),
    (256, 50, 84, 1, True, False),
    (256, 50, 84, 32, True, False),
)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time; the PyTorch column is a plain ``F.conv2d``."""
    import torchvision

    def run(function: Any, x: Any, offset: Any, weight: Any, bias: Any, mask: Any) -> Tensor:
        return function(x, offset, weight, bias, (1, 1), (1, 1), (1, 1), mask)

    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(device)

    # A GPU needs more work to fill it, and computes in half precision.
    on_gpu = device.type == "cuda"
    larger = ((256, 200, 336, 1, True, False),) if on_gpu else ()
    dtypes = (torch.float32, *((torch.float16,) if on_gpu else ()))
    for (channels, height, width, groups, masked, quick), dtype in product(SIZES + larger, dtypes):
        wide, weight, offset, bias = (
            t.to(dtype)
            for t in (
                random(1, channels, height, width),
                random(channels, channels // groups, 3, 3),
                random(1, 18, height, width),
                random(channels),
            )
        )
        mask = random(1, 9, height, width).sigmoid().to(dtype) if masked else None
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            x = wide.contiguous(memory_format=form)
            name = f"{channels} to {channels}, 3 x 3, {height} x {width}"
            name += ", v2" if masked else ", v1"
            name += f", {groups} groups" if groups > 1 else ""
            sizes: dict[str, Any] = dict(
                name=f"{name}; PyTorch: plain conv2d",
                layout="channels_last" if last else "NCHW",
                dtype=str(dtype).removeprefix("torch."),
                bytes=x.element_size() * (2 * x.numel() + 27 * height * width),
                quick=quick,
            )
            flops = 2 * 9 * channels * channels // groups * height * width

            arguments = (x, offset, weight, bias, mask)
            yield Case(
                "deform_conv2d forward",
                ours=lambda: run(ops.deform_conv2d, *arguments),  # noqa: B023
                torchvision=lambda: run(torchvision.ops.deform_conv2d, *arguments),  # noqa: B023
                pytorch=lambda: F.conv2d(x, weight, bias, 1, 1, 1, groups),  # noqa: B023
                flops=flops,
                **sizes,
            )
            leaves = [t if t is None else t.detach().requires_grad_() for t in arguments]
            tensors = [t for t in leaves if t is not None]
            ours = run(ops.deform_conv2d, *leaves)
            theirs = run(torchvision.ops.deform_conv2d, *leaves)
            plain = F.conv2d(leaves[0], leaves[2], leaves[3], 1, 1, 1, groups)  # type: ignore[arg-type]
            grad = random(*ours.shape).to(dtype).contiguous(memory_format=form)
            yield Case(
                "deform_conv2d backward",
                ours=gradients(ours, tensors, grad),
                torchvision=gradients(theirs, tensors, grad),
                pytorch=gradients(plain, [leaves[0], leaves[2], leaves[3]], grad),  # type: ignore[list-item]
                flops=2 * flops,
                **sizes,
            )
