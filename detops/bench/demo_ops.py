# SPDX-License-Identifier: MIT
"""Benchmarks of axpy, gdh, mlp, lltm_cell and lltm against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import ops
from .case import Call, Case

OPS = ("axpy", "gdh", "mlp", "lltm_cell", "lltm")


def plain_lltm_cell(
    x: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """The cell as one writes it in PyTorch."""
    i, o, g = F.linear(torch.cat([h, x], 1), weights, bias).chunk(3, 1)
    c = c + F.elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def _with_backward(forward: Call, parameters: list[Tensor]) -> Call:
    """The gradient of the first parameter, on the way to which all are computed."""
    return lambda: torch.autograd.grad(forward().sum(), parameters)[0]


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
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
        # Backward: the weights' gradients, and the hidden units'; the input wants none.
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
    steps, rows, inputs, state = 100, 16, 32, 128
    x, h, c = random(steps, rows, inputs), random(rows, state), random(rows, state)
    sequence, lstm = ops.LLTMSequence(inputs, state).to(device), nn.LSTM(inputs, state).to(device)
    weights, bias = sequence.weights, sequence.bias

    def plain() -> Tensor:
        outputs, now = [], (h, c)
        for step in x:
            now = plain_lltm_cell(step, weights, bias, *now)
            outputs.append(now[0])
        return torch.stack(outputs)

    flops = 2 * rows * 3 * state * (state + inputs)
    case = f"batch {rows}, {inputs} inputs, {state} states"
    versions: list[tuple[str, str, Call, Call, int, bool]] = [
        (
            "lltm_cell",
            case,
            lambda: torch.add(*ops.lltm_cell(x[0], weights, bias, h, c)),
            lambda: torch.add(*plain_lltm_cell(x[0], weights, bias, h, c)),
            flops,
            True,
        ),
        (
            "lltm",
            f"{steps} steps, {case}",
            lambda: sequence(x, (h, c))[0],
            plain,
            flops * steps,
            True,
        ),
        (
            "lltm",
            "the same, PyTorch: nn.LSTM",
            lambda: sequence(x, (h, c))[0],
            lambda: lstm(x)[0],
            flops * steps,
            False,
        ),
    ]
    for op, name, ours, theirs, work, quick in versions:
        least = 4 * (steps if op == "lltm" else 1) * rows * (inputs + state)
        yield Case(
            f"{op} forward", name, ours, pytorch=theirs, flops=work, bytes=least, quick=quick
        )
        yield Case(
            f"{op} both",
            name,
            _with_backward(ours, [weights, bias]),
            pytorch=_with_backward(theirs, [weights, bias] if quick else list(lstm.parameters())),
            # Backward: the weights' gradients, and the states' but for the first; x wants none.
            flops=2 * work + (2 * rows * 3 * state * state * (steps - 1) if op == "lltm" else 0),
            bytes=2 * least,
            quick=quick,
        )
