# SPDX-License-Identifier: MIT
"""Benchmarks of axpy, gdh, mlp, lltm_cell and lltm against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .case import Call, Case

OPS = ("axpy", "gdh", "mlp", "lltm_cell", "lltm")

# Steps, rows, inputs, states.
LLTM_SIZES = ((100, 16, 32, 128), (50, 64, 512, 512), (50, 100, 256, 256), (20, 4, 1024, 1024))


def plain_lltm_cell(
    x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes one cell in plain PyTorch."""
    i, o, g = F.linear(torch.cat([h, x], 1), weights, bias).chunk(3, 1)
    c = c + F.elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def _with_backward(forward: Call, parameters: list[Tensor]) -> Call:
    """Returns the first parameter's gradient; autograd computes those of all parameters."""
    return lambda: torch.autograd.grad(forward().sum(), parameters)[0]


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(device)

    on_gpu = device.type == "cuda"
    side = 8000 if on_gpu else 1000
    x, y = random(side, side), random(side, side)
    yield Case(
        "axpy",
        f"{x.numel():,}",
        lambda: ops.axpy(x, y),
        pytorch=lambda: torch.add(y, x, alpha=2),
        bytes=12 * x.numel(),
        bandwidth=on_gpu,
    )
    yield Case(
        "gdh",
        f"{side:,} x {side:,} transposed",
        lambda: ops.gdh(x.t()),
        pytorch=lambda: x.t().contiguous().view(-1),
        bytes=8 * x.numel(),
        quick=True,
        bandwidth=on_gpu,
    )
    yield from _mlp(device, random)
    yield from _lltm(device, random)


def _mlp(device: torch.device, random: Callable[..., Tensor]) -> Iterator[Case]:
    ours = ops.MLP().to(device)
    plain = nn.Sequential(nn.Linear(5, 15), nn.ReLU(), nn.Linear(15, 1)).to(device)
    with torch.no_grad():
        parameters = zip(plain.parameters(), ours.parameters(), strict=True)
        for p, q in parameters:
            p.copy_(q.view_as(p))
    for rows in (1, 64):
        x, name, quick = random(rows, 5), f"{rows} x 5-15-1", rows == 64
        forward: list[Call] = [lambda x=x: ours(x), lambda x=x: plain(x)]  # type: ignore[misc]
        both = [
            _with_backward(forward[0], list(ours.parameters())),
            _with_backward(forward[1], list(plain.parameters())),
        ]
        # The backward pass computes gradients of weights and hidden units, not of the input.
        for op, (call, theirs), products in (("forward", forward, 90), ("both", both, 195)):
            yield Case(
                f"mlp {op}",
                name,
                call,
                pytorch=theirs,
                bytes=4 * rows * 6,
                flops=2 * rows * products,
                quick=quick,
            )


def _lltm(device: torch.device, random: Callable[..., Tensor]) -> Iterator[Case]:
    """Yields one cell and sequences, next to a loop over the plain cell and next to ``nn.LSTM``."""
    for steps, rows, inputs, state in LLTM_SIZES:
        x, h, c = random(steps, rows, inputs), random(rows, state), random(rows, state)
        sequence = ops.LLTMSequence(inputs, state).to(device)
        lstm = nn.LSTM(inputs, state).to(device)
        weights, bias = sequence.weights, sequence.bias

        def ours() -> Tensor:
            return sequence(x, (h, c))[0]  # noqa: B023

        def plain() -> Tensor:
            outputs, now = [], (h, c)  # noqa: B023
            for step in x:  # noqa: B023
                now = plain_lltm_cell(step, weights, bias, *now)  # noqa: B023
                outputs.append(now[0])
            return torch.stack(outputs)

        def by_lstm(cudnn: bool = True) -> Tensor:
            with torch.backends.cudnn.flags(enabled=cudnn):
                return lstm(x)[0]  # noqa: B023

        def cell(function: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
            return torch.add(*function(x[0], weights, bias, h, c))  # noqa: B023

        size = f"batch {rows}, {inputs} inputs, {state} states"
        name = f"{steps} steps, {size}"
        own: list[Tensor] = [weights, bias]
        theirs: list[Tensor] = list(lstm.parameters())
        versions: list[tuple[int, str, Call, Call, list[Tensor]]] = [
            (1, size, partial(cell, ops.lltm_cell), partial(cell, plain_lltm_cell), own),
            (steps, name, ours, plain, own),
            (steps, f"{name}, PyTorch: nn.LSTM", ours, by_lstm, theirs),
        ]
        if device.type == "cuda":
            without = f"{name}, PyTorch: nn.LSTM without cuDNN"
            versions.append((steps, without, ours, partial(by_lstm, False), theirs))
        for count, case, call, other, parameters in versions:
            op = "lltm" if count > 1 else "lltm_cell"
            flops = 2 * count * rows * 3 * state * (state + inputs)
            min_bytes = 4 * count * rows * (inputs + state)
            quick = steps == 100 and parameters is own
            yield Case(
                f"{op} forward",
                case,
                call,
                pytorch=other,
                flops=flops,
                bytes=min_bytes,
                quick=quick,
            )
            # The backward pass computes gradients of the weights and of all states except the
            # first, not of x.
            yield Case(
                f"{op} both",
                case,
                _with_backward(call, own),
                pytorch=_with_backward(other, parameters),
                flops=2 * flops + 2 * rows * 3 * state * state * (count - 1),
                bytes=2 * min_bytes,
                quick=quick,
            )
