# SPDX-License-Identifier: MIT
"""Benchmarks of active_rotated_filter against index_select."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("active_rotated_filter",)

# Output planes, input planes and filter rows. Each filter has 8 orientations and 8 rotations.
SIZES = ((256, 32, 3), (32, 32, 3), (64, 64, 1), (2, 3, 3))
ORIENTATIONS = ROTATIONS = 8


def plain_active_rotated_filter(input: Tensor, source: Tensor) -> Tensor:
    """Gathers rotated filters; ``source`` ``[rotations, entries]`` indexes a filter's weights."""
    outputs, inputs = input.shape[:2]
    rotated = input.flatten(2).index_select(2, source.flatten())
    rotated = rotated.view(outputs, inputs, len(source), -1).transpose(1, 2)
    return rotated.reshape(outputs * len(source), -1, *input.shape[3:])


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for outputs, inputs, rows in SIZES:
        x = torch.randn(outputs, inputs, ORIENTATIONS, rows, rows, generator=generator).to(device)
        entries = ORIENTATIONS * rows * rows
        positions = torch.stack(
            [torch.randperm(entries, generator=generator) for _ in range(ROTATIONS)], 1
        ).to(device)
        source = positions.argsort(0).t().contiguous()
        indices = (positions + 1).to(torch.uint8).view(ORIENTATIONS, rows, rows, ROTATIONS)
        leaf = x.clone().requires_grad_()
        output = ops.active_rotated_filter(leaf, indices)
        their_output = plain_active_rotated_filter(leaf, source)
        grad = torch.randn(output.shape, generator=generator).to(device)
        name = f"{outputs} x {inputs} filters, {ORIENTATIONS} x {rows} x {rows}"
        yield Case(
            "active_rotated_filter forward",
            name,
            lambda: ops.active_rotated_filter(x, indices),  # noqa: B023
            pytorch=lambda: plain_active_rotated_filter(x, source),  # noqa: B023
            bytes=4 * (x.numel() + grad.numel()),
            quick=outputs == 32,
        )
        yield Case(
            "active_rotated_filter backward",
            name,
            gradients(output, leaf, grad),
            pytorch=gradients(their_output, leaf, grad),
            bytes=4 * (x.numel() + grad.numel()),
            flops=grad.numel(),
        )
