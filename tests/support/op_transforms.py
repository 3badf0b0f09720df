"""Writes the table of docs/ops.md: each public op under each PyTorch transform.

python tests/support/op_transforms.py docs/ops.md
"""

import inspect
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from raw_calls import arguments
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import detops
from detops.marks import fill, marks

BEGIN, END = marks("transforms")
# Without masks_to_rle, which returns text: it has nothing to transform.
PUBLIC = sorted(
    name
    for name in detops.ops.__all__
    if inspect.isfunction(getattr(detops, name))
    and name not in ("register_tensor_methods", "masks_to_rle")
)
UNSUPPORTED_ERRORS = (RuntimeError, NotImplementedError, ValueError, TypeError)


class Call:
    """An op as a function of some of the tensors of a valid call; the others stay fixed."""

    def __init__(self, name: str, chosen: Callable[[Tensor], bool], dtype: torch.dtype) -> None:
        call_arguments = tree_map_only(
            Tensor, lambda x: x.to(dtype) if x.is_floating_point() else x, arguments(name)
        )
        self.op = getattr(torch.ops.detops, name)
        self.leaves, self.spec = tree_flatten(call_arguments)
        self.positions = [
            i for i, x in enumerate(self.leaves) if isinstance(x, Tensor) and chosen(x)
        ]
        self.tensors = [self.leaves[i] for i in self.positions]

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = list(self.leaves)
        for i, x in zip(self.positions, tensors, strict=True):
            leaves[i] = x
        return tuple(tree_leaves(self.op(**tree_unflatten(leaves, self.spec))))

    def restrict(self, positions: list[int]) -> "Call":
        """Restricts the op to fewer of the tensors."""
        self.positions = [self.positions[i] for i in positions]
        self.tensors = [self.leaves[i] for i in self.positions]
        return self


def floating(name: str, dtype: torch.dtype = torch.float64) -> Call:
    return Call(name, Tensor.is_floating_point, dtype)


def differentiable(name: str) -> Call | None:
    """Returns the op as a function of the tensors that get a gradient, or None."""
    call = floating(name)
    leaves = [x.clone().requires_grad_() for x in call.tensors]
    results = [r for r in call(*leaves) if r.requires_grad]
    if not results:
        return None
    try:
        sum(r.sum() for r in results).backward()
    except RuntimeError:
        return None
    reached = [i for i, x in enumerate(leaves) if x.grad is not None]
    return call.restrict(reached) if reached else None


def weighted_sum(call: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor]:
    """Sums all results to one number, each element with its own weight."""

    def total(*tensors: Tensor) -> Tensor:
        results = [r for r in call(*tensors) if r.is_floating_point()]
        return sum((r * torch.arange(1, 1 + r.numel()).view(r.shape)).sum() for r in results)

    return total


def assert_same(found: object, expected: object, **bounds: float) -> None:
    torch.testing.assert_close(found, expected, equal_nan=True, **(bounds or dict(rtol=0, atol=0)))


class Module(nn.Module):
    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.call(*tensors)


def all_tensors(name: str) -> Call:
    return Call(name, lambda _: True, torch.float32)


def compiles(name: str) -> str:
    call = all_tensors(name)
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: call(*x), fullgraph=True, backend="aot_eager")
    assert_same(compiled(*call.tensors), call(*call.tensors))
    return "yes"


def exports(name: str) -> str:
    """Exports in both modes, and with gradients if there is a derivative."""
    call, derived = all_tensors(name), differentiable(name)
    for strict in (False, True):
        program = torch.export.export(Module(call), tuple(call.tensors), strict=strict).module()
        assert_same(program(*call.tensors), call(*call.tensors))
        if derived is not None:
            args = tuple(x.clone().requires_grad_() for x in derived.tensors)
            assert_same_gradients(
                torch.export.export(Module(derived), args, strict=strict).module(), name
            )
    return "yes"


def traces(name: str) -> str:
    """Traces with and without gradients; `torch.jit.trace` checks the trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call, derived = all_tensors(name), differentiable(name)
        traced = torch.jit.trace(Module(call), tuple(call.tensors))
        assert_same(traced(*call.tensors), call(*call.tensors))
        if derived is not None:
            for gradients in (False, True):
                args = tuple(x.clone().requires_grad_(gradients) for x in derived.tensors)
                assert_same_gradients(torch.jit.trace(Module(derived), args), name)
    return "yes"


def assert_same_gradients(module: Callable[..., tuple[Tensor, ...]], name: str) -> None:
    """Asserts that the module has the op's gradients."""
    found, expected = [], []
    call = differentiable(name)
    for function, gradients in ((module, found), (call, expected)):
        leaves = [x.clone().requires_grad_() for x in call.tensors]
        gradients += torch.autograd.grad(weighted_sum(function)(*leaves), leaves)
    assert_same(found, expected, rtol=1e-12, atol=1e-12)


def scripts(name: str) -> str:
    """Scripts the public function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.jit.script(getattr(detops, name))
        except RuntimeError:
            return "-"
    return "yes"


class Kernels(TorchDispatchMode):
    """Counts the calls of our ops."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.count += func.namespace == "detops"
        return func(*args, **(kwargs or {}))


def count_kernels(call: Callable[..., Any], *tensors: Tensor) -> int:
    with Kernels() as kernels:
        call(*tensors)
    return kernels.count


def vmap(name: str) -> str:
    """Maps over all tensors of numbers or masks; labels and shapes stay the same."""
    call = Call(name, lambda x: x.is_floating_point() or x.dtype == torch.bool, torch.float32)
    batches = [torch.stack([x, x.flip(0)]) for x in call.tensors]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that a loop is slow
        try:
            found = torch.vmap(call)(*batches)
        except UNSUPPORTED_ERRORS:
            return "-"
        loops = count_kernels(torch.vmap(call), *batches) > count_kernels(call, *call.tensors)
    each = [call(*tensors) for tensors in zip(*batches, strict=True)]
    expected = tuple(torch.stack(r) for r in zip(*each, strict=True))
    assert_same(found, expected, rtol=1e-5, atol=1e-6)
    return "a loop" if loops else "one call"


def grad(name: str) -> str:
    """Compares `torch.func.grad` with a backward pass."""
    call = differentiable(name)
    if call is None:
        return "-"
    positions = tuple(range(len(call.tensors)))
    found = torch.func.grad(weighted_sum(call), positions)(*call.tensors)
    leaves = [x.clone().requires_grad_() for x in call.tensors]
    assert_same(
        found, torch.autograd.grad(weighted_sum(call)(*leaves), leaves), rtol=1e-12, atol=1e-12
    )
    return "yes"


def jvp(name: str) -> str:
    """Compares forward mode with the backward pass: both give the same directional derivative."""
    call = differentiable(name)
    if call is None:
        return "-"
    directions = tuple(torch.linspace(-1, 1, x.numel()).view(x.shape).to(x) for x in call.tensors)
    try:
        _, found = torch.func.jvp(weighted_sum(call), tuple(call.tensors), directions)
    except UNSUPPORTED_ERRORS:
        return "-"
    positions = tuple(range(len(call.tensors)))
    slopes = torch.func.grad(weighted_sum(call), positions)(*call.tensors)
    expected = sum((g * d).sum() for g, d in zip(slopes, directions, strict=True))
    assert_same(found, expected, rtol=1e-9, atol=1e-9)
    return "yes"


def second(name: str) -> str:
    """Compares a second backward pass with differences of the first."""
    call = differentiable(name)
    if call is None:
        return "-"
    leaves = [x.clone().requires_grad_() for x in call.tensors]
    # Even a gradient that is independent of the tensors depends on the gradient of the results.
    results = [r for r in call(*leaves) if r.requires_grad]
    weights = [torch.rand_like(r, requires_grad=True) for r in results]
    first = torch.autograd.grad(results, leaves, weights, create_graph=True)
    try:
        torch.autograd.grad(sum(g.sum() for g in first), weights, allow_unused=True)
    except UNSUPPORTED_ERRORS:
        return "-"
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    return "yes"


def autocast(name: str) -> str:
    """Returns the result dtype for bfloat16 tensors under autocast to bfloat16."""
    call = floating(name, torch.bfloat16)
    plain = [r.dtype for r in floating(name, torch.float32)(*floating(name, torch.float32).tensors)]
    if not any(dtype.is_floating_point for dtype in plain):
        return "-"
    with torch.autocast("cpu", torch.bfloat16):
        found = {r.dtype for r in call(*call.tensors) if r.is_floating_point()}
    assert len(found) == 1
    return str(found.pop()).removeprefix("torch.")


COLUMNS: dict[str, Callable[[str], str]] = {
    "compile": compiles,
    "export": exports,
    "trace": traces,
    "script": scripts,
    "vmap": vmap,
    "func.grad": grad,
    "jvp": jvp,
    "second derivative": second,
    "autocast": autocast,
}


def row(name: str) -> str:
    """Returns the row of an op; a wrong result raises an AssertionError."""
    cells = (f"`{name}`", *(column(name) for column in COLUMNS.values()))
    return f"| {' | '.join(cells)} |"


def table() -> str:
    lines = [f"| op | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    return "\n".join([*lines, *map(row, PUBLIC)]) + "\n"


def main() -> None:
    """Writes the table into a page, between its two marks."""
    page = Path(sys.argv[1])
    text = fill(page.read_text(encoding="utf-8"), "transforms", table())
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
