# SPDX-License-Identifier: MIT
"""Benchmarks of the IoU losses on matched boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Call, Case, uniform

OPS = ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss")

COUNT, COUNT_ON_GPU = 100_000, 4_000_000
Loss = Callable[..., Tensor]


def _forward(loss: Loss, boxes1: Tensor, boxes2: Tensor) -> Call:
    return lambda: loss(boxes1, boxes2)


def _backward(loss: Loss, boxes1: Tensor, boxes2: Tensor) -> Call:
    leaf = boxes1.clone().requires_grad_()
    return lambda: torch.autograd.grad(loss(leaf, boxes2, reduction="sum"), leaf)[0]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    import torchvision

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    count = COUNT_ON_GPU if on_gpu else COUNT
    truth = uniform(generator, count)[0].to(device)
    found = truth + torch.randn(count, 4, generator=generator).to(device) * 4
    for name in ("generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss"):
        ours, theirs = getattr(ops, name), getattr(torchvision.ops, name)
        yield Case(
            f"{name} forward",
            f"{count:,} pairs",
            _forward(ours, found, truth),
            _forward(theirs, found, truth),
            bytes=count * 4 * 9,
            flops=count * 30,
            quick=True,
            bandwidth=on_gpu,
        )
        yield Case(
            f"{name} forward and backward",
            f"{count:,} pairs",
            _backward(ours, found, truth),
            _backward(theirs, found, truth),
            bytes=count * 4 * (9 + 9 + 8),
            flops=count * 110,
            quick=True,
            bandwidth=on_gpu,
        )
