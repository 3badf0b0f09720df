# SPDX-License-Identifier: MIT
"""Benchmarks of chamfer_distance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import ops
from .case import Case

OPS = ("chamfer_distance",)


def plain(points1: Tensor, points2: Tensor) -> tuple[Tensor, ...]:
    """Computes the chamfer distance in plain PyTorch."""
    square = (points1[:, :, None] - points2[:, None]).square().sum(-1)
    dist1, idx1 = square.min(2)
    dist2, idx2 = square.min(1)
    return dist1, dist2, idx1, idx2


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    for sets, n, m in ((1, 9, 9), (256, 40, 40), (2, 2000, 1500), *(((2000, 40, 40),) * on_gpu)):
        a = torch.rand(sets, n, 2, generator=generator).to(device).requires_grad_()
        b = torch.rand(sets, m, 2, generator=generator).to(device).requires_grad_()
        frozen = a.detach(), b.detach()
        grads = torch.ones(sets, n, device=device), torch.ones(sets, m, device=device)
        rows: dict[str, Any] = dict(
            quick=sets == 256, bytes=sets * (n + m) * 20, flops=10 * sets * n * m
        )
        yield Case(
            "chamfer_distance forward",
            f"{sets} x {n:,} and {m:,}",
            lambda: ops.chamfer_distance(*frozen),  # noqa: B023
            pytorch=lambda: plain(*frozen),  # noqa: B023
            **rows,
        )
        yield Case(
            "chamfer_distance forward and backward",
            f"{sets} x {n:,} and {m:,}",
            lambda: torch.autograd.grad(ops.chamfer_distance(a, b)[:2], (a, b), grads),  # noqa: B023
            pytorch=lambda: torch.autograd.grad(plain(a, b)[:2], (a, b), grads),  # noqa: B023
            **rows,
        )
