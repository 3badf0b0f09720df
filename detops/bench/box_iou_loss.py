# SPDX-License-Identifier: MIT
"""Benchmarks of the losses of matched boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Call, Case, uniform

COUNT = 100_000
Loss = Callable[..., Tensor]


def _forward(loss: Loss, boxes1: Tensor, boxes2: Tensor) -> Call:
    return lambda: loss(boxes1, boxes2)


def _backward(loss: Loss, boxes1: Tensor, boxes2: Tensor) -> Call:
    leaf = boxes1.clone().requires_grad_()
    return lambda: torch.autograd.grad(loss(leaf, boxes2, reduction="sum"), leaf)[0]


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
    import torchvision

    generator = torch.Generator().manual_seed(0)
    truth = uniform(generator, COUNT)[0].to(device)
    found = truth + torch.randn(COUNT, 4, generator=generator).to(device) * 4
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        ours, theirs = getattr(ops, name), getattr(torchvision.ops, name)
        yield Case(
            f"{name} forward",
            f"{COUNT:,} pairs",
            _forward(ours, found, truth),
            _forward(theirs, found, truth),
            bytes=COUNT * 4 * 9,
            flops=COUNT * 30,
            quick=True,
        )
        yield Case(
            f"{name} forward and backward",
            f"{COUNT:,} pairs",
            _backward(ours, found, truth),
            _backward(theirs, found, truth),
            bytes=COUNT * 4 * (9 + 9 + 8),
            flops=COUNT * 110,
            quick=True,
        )
