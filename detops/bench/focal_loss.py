# SPDX-License-Identifier: MIT
"""Benchmarks of sigmoid_focal_loss and softmax_focal_loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .case import Call, Case

OPS = ("sigmoid_focal_loss", "softmax_focal_loss")

ANCHORS, ANCHORS_ON_GPU, CLASSES = 20_000, 400_000, 80


def plain_softmax(x: Tensor, t: Tensor, alpha: float = 0.25, gamma: float = 2) -> Tensor:
    """Computes the softmax focal loss in plain PyTorch."""
    log_p = x.log_softmax(1).gather(1, t[:, None])[:, 0]
    return -alpha * (1 - log_p.exp()) ** gamma * log_p


def _softmax(device: torch.device) -> Iterator[Case]:
    generator = torch.Generator().manual_seed(0)
    anchors = ANCHORS_ON_GPU if device.type == "cuda" else ANCHORS
    for rows, classes in ((8, 3), (512, 81), (anchors, CLASSES), (anchors, 2)):
        x = torch.randn(rows, classes, generator=generator).to(device).requires_grad_()
        t = torch.randint(classes, (rows,), generator=generator).to(device)
        frozen = x.detach()
        name, size = f"{rows:,} x {classes}", x.numel() * x.element_size()
        yield Case(
            "softmax_focal_loss forward",
            name,
            lambda: ops.softmax_focal_loss(frozen, t),  # noqa: B023
            pytorch=lambda: plain_softmax(frozen, t),  # noqa: B023
            bytes=size,
        )
        yield Case(
            "softmax_focal_loss both",
            f"{name}, sum",
            lambda: torch.autograd.grad(ops.softmax_focal_loss(x, t, reduction="sum"), x),  # noqa: B023
            pytorch=lambda: torch.autograd.grad(plain_softmax(x, t).sum(), x),  # noqa: B023
            bytes=3 * size,
            quick=rows == anchors and classes == CLASSES,
        )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    import torchvision

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    anchors = ANCHORS_ON_GPU if on_gpu else ANCHORS
    wide = torch.randn(anchors, CLASSES, generator=generator).to(device) * 2 - 3
    hits = (torch.rand(anchors, CLASSES, generator=generator) > 0.98).to(device)
    theirs = torchvision.ops.sigmoid_focal_loss

    def both(loss: Callable[..., Tensor], **arguments: Any) -> Call:
        return lambda: torch.autograd.grad(loss(x, t, **arguments), x)[0]

    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, t = wide.to(dtype).requires_grad_(), hits.to(dtype)
        frozen = x.detach()
        rows: dict[str, Any] = dict(dtype=str(dtype).removeprefix("torch."), bandwidth=on_gpu)
        size = x.numel() * x.element_size()
        yield Case(
            "sigmoid_focal_loss forward",
            f"{anchors:,} x {CLASSES}",
            lambda: ops.sigmoid_focal_loss(frozen, t),  # noqa: B023
            lambda: theirs(frozen, t),  # noqa: B023
            bytes=3 * size,
            **rows,
        )
        yield Case(
            "sigmoid_focal_loss both",
            f"{anchors:,} x {CLASSES}, sum",
            both(ops.sigmoid_focal_loss, reduction="sum"),
            both(theirs, reduction="sum"),
            bytes=5 * size,
            quick=dtype == torch.float32,
            **rows,
        )
        yield Case(
            "sigmoid_focal_loss both",
            f"{anchors:,} x {CLASSES}, gamma 1.5, mean",
            both(ops.sigmoid_focal_loss, gamma=1.5, reduction="mean"),
            both(theirs, gamma=1.5, reduction="mean"),
            bytes=5 * size,
            **rows,
        )
    yield from _softmax(device)
