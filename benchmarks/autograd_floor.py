"""Times small ops beside a bare autograd function of Python with the same raw ops in it.

The stable ABI has no autograd functions in C++. Ops ask for transforms, forward mode, autocast, and
who wants a gradient; a bare function does not, and has its passes in Python.

python benchmarks/autograd_floor.py
"""

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from detops import ops

ROUNDS, CALLS = 60, 150
_OPS = torch.ops.detops
Call = Callable[[], Tensor]


class BareMlp(torch.autograd.Function):
    """Without a gradient of the input."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        output, hidden = _OPS.mlp_forward.default(*tensors)
        ctx.save_for_backward(tensors[0], hidden, tensors[1], tensors[3])
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        grads = _OPS.mlp_backward.default(grad, *ctx.saved_tensors, False)
        return None, *grads[1:]


class BareLltmCell(torch.autograd.Function):
    """Without gradients of the input and of what was before."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        output, cells, gates = _OPS.lltm_forward.default(*tensors)
        input, weights, _, h, c = tensors
        ctx.save_for_backward(input, weights, h, c, output, cells, gates)
        return output, cells

    @staticmethod
    def backward(ctx: Any, grad_h: Tensor, grad_c: Tensor) -> tuple:
        saved = ctx.saved_tensors
        grads = _OPS.lltm_backward.default(grad_h, None, grad_c, *saved, False, False)
        return None, grads[1], grads[2], None, None


def bare(function: type[torch.autograd.Function]) -> Callable:
    """Its ``apply`` without what that does for transforms."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


def cases() -> Iterator[tuple[str, Call, Call, list[Any]]]:
    """A name, the op, the bare function, and what wants gradients."""
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    of_mlp, run_mlp = list(ops.MLP().parameters()), bare(BareMlp)
    for rows in (1, 64):
        given = [random(rows, 5), *of_mlp]
        name = f"mlp, {rows} x 5-15-1"
        yield name, partial(ops.mlp, *given), partial(run_mlp, *given), of_mlp

    of_cell, run_cell = list(ops.LLTM(32, 128).parameters()), bare(BareLltmCell)
    given = [random(16, 32), *of_cell, random(16, 128), random(16, 128)]

    def joined(cell: Callable[..., tuple[Tensor, Tensor]]) -> Tensor:
        return torch.add(*cell(*given))

    name = "lltm_cell, batch 16, 32 inputs, 128 states"
    yield name, partial(joined, ops.lltm_cell), partial(joined, run_cell), of_cell


def gradients(call: Call, of: list[Any]) -> tuple[Tensor, ...]:
    return torch.autograd.grad(call().sum(), of)


def main() -> None:
    torch.set_num_threads(1)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name, ours, least, of in cases():
        calls[f"{name}, forward"] = ours, least
        calls[f"{name}, both"] = partial(gradients, ours, of), partial(gradients, least, of)
    times: dict[str, list[list[float]]] = {name: [[], []] for name in calls}
    for _ in range(ROUNDS):
        for name, pair in calls.items():
            for call, to in zip(pair, times[name], strict=True):
                began = time.process_time()
                for _ in range(CALLS):
                    call()
                to.append((time.process_time() - began) / CALLS)
    for name, measured in times.items():
        seconds = [statistics.median(each[5:]) for each in measured]
        print(f"{seconds[0] / seconds[1]:5.2f}  {seconds[0] * 1e6:7.2f} us  {name}")


if __name__ == "__main__":
    main()
