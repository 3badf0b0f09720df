"""Descriptions of overlap ops, from which tests/ops/boxes/test_overlap_contract.py tests them.

To test a new op, write `tests/ops/<family>/cases_<op>.py` with a list `CASES` of `Overlap`s.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import torch
from hypothesis.strategies import SearchStrategy
from torch import Tensor

Pair = tuple[Tensor, Tensor]
MakePair = Callable[
    [torch.Generator, int, int], Pair
]  # n and m valid elements; some of them overlap


@dataclass(frozen=True, eq=False)
class Inputs:
    """The two arguments of an overlap op. Their elements are boxes, polygons or masks."""

    names: tuple[str, str]  # of the arguments, in errors
    sizes: tuple[tuple[int, ...], tuple[int, ...]]  # of an element of each
    smooth: dict[str, MakePair]  # inputs of several kinds, around which an overlap is smooth
    tied: dict[str, MakePair]  # inputs whose elements share sides and corners
    degenerate: tuple[list, list]  # elements without area
    strategies: tuple[SearchStrategy, SearchStrategy]  # any valid element, often with ties
    to_first: Callable[[Tensor], Tensor] = lambda second: second  # makes second elements first ones
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Overlap:
    """One way to call an overlap op, and its properties for the tests."""

    name: str
    op: str  # the public name, in errors
    function: Callable[..., Tensor]  # of both arguments
    oracle: Callable[[Tensor, Tensor], float]  # of an element of each, in float64
    inputs: Inputs
    tolerances: dict[torch.dtype, tuple[float, float]]  # rtol and atol, by the dtype of the result
    aligned: bool = False  # compares element by element; otherwise all pairs, in a matrix
    matrix: Callable[..., Tensor] | None = None  # of all pairs; its diagonal has the same bits
    symmetric: bool | None = True  # None if the arguments differ in kind
    same_bits: bool = False  # on every instruction set and device
    # Values: of an element with itself, of one without area, and of one with a NaN or an infinity.
    # With None, the tests accept any finite value.
    self_value: float = 1.0
    degenerate_value: float | None = 0.0
    nonfinite_value: float | None = 0.0
    second_may_be_nonfinite: bool = False  # then any finite value is accepted
    # Indices of the arguments with a gradient, and for each pair of elements the oracle with those
    # factors fixed that the gradient treats as constants.
    differentiable: tuple[int, ...] = (0, 1)
    with_fixed_factors: Callable[[Tensor, Tensor], Callable[[Tensor, Tensor], float]] | None = None
    exceptions: dict[str, str] = field(default_factory=dict)  # reasons by test, without "test_"

    def pair(self, n: int, m: int, dtype: torch.dtype, kind: str | None = None, seed=0) -> Pair:
        """Returns valid elements; if aligned, ``n`` of both."""
        kinds = self.inputs.smooth | self.inputs.tied
        make = kinds[kind] if kind else next(iter(kinds.values()))
        first, second = make(torch.Generator().manual_seed(seed), n, n if self.aligned else m)
        return first.to(dtype), second.to(dtype)

    def all_pairs(self, first: Tensor, second: Tensor) -> Pair:
        """Returns arguments that compare each of the first elements with each of the second."""
        if not self.aligned:
            return first, second
        n, m = len(first), len(second)
        return first.repeat_interleave(m, 0), second.repeat(n, *[1] * (second.dim() - 1))

    def expected(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns what the oracle computes."""
        pairs = zip(first, second, strict=True) if self.aligned else product(first, second)
        values = torch.tensor([self.oracle(a, b) for a, b in pairs], dtype=torch.double)
        values = (
            values if self.degenerate_value is None else values.nan_to_num(self.degenerate_value)
        )
        return values if self.aligned else values.view(len(first), len(second))

    def differences(self, first: Tensor, second: Tensor, step: float = 1e-5) -> list[Tensor]:
        """Returns the gradients of :meth:`results` as central differences of the oracle."""
        arguments = first.double(), second.double()
        found = [torch.zeros_like(x) for x in arguments]
        n, m = len(first), len(second)
        pairs = [(i, i) for i in range(n)] if self.aligned else list(product(range(n), range(m)))
        for (i, j), weight in zip(pairs, torch.linspace(-1, 1, len(pairs)), strict=True):
            elements = arguments[0][i], arguments[1][j]
            oracle = self.with_fixed_factors(*elements) if self.with_fixed_factors else self.oracle
            for k in self.differentiable:
                for c in range(elements[k].numel()):
                    values = []
                    for sign in (1, -1):
                        shifted = elements[k].clone()
                        shifted[c] += sign * step
                        values.append(
                            oracle(shifted, elements[1]) if k == 0 else oracle(elements[0], shifted)
                        )
                    found[k][(i, j)[k], c] += weight * (values[0] - values[1]) / (2 * step)
        return [found[k] for k in self.differentiable]

    def results(self, first: Tensor, second: Tensor, weights=(-1.0, 1.0)) -> list[Tensor]:
        """Returns the overlap and the gradients of its sum, weighted from one number to another."""
        leaves = [
            x.detach().requires_grad_(k in self.differentiable)
            for k, x in enumerate((first, second))
        ]
        found = self.function(*leaves)
        weight = torch.linspace(*weights, found.numel(), device=found.device).view(found.shape)
        inputs = [leaves[k] for k in self.differentiable]
        grads = torch.autograd.grad(found, inputs, weight.to(found)) if inputs else ()
        return [found.detach(), *grads]
