"""The error bounds of docs/reliability-figures.md, checked on seeds that its table does not use."""

import math

import pytest
import torch
from accuracy import (
    BOUNDS,
    HALF_PRECISION_BOUND,
    ROUNDOFF,
    SEEDS,
    Pair,
    Row,
    error,
    errors,
    has_floating_results,
    op_name,
    rounded,
    table,
    text,
)
from call import Call
from calls import CALLS
from paths import ROOT

from detops.marks import marks

HALF_DTYPES = ("float16", "bfloat16")
PAGE = ROOT / "docs" / "reliability-figures.md"


def is_within(found, bound):
    return found is None or found <= bound


@pytest.mark.parametrize("dtype", ROUNDOFF, ids=str)
@pytest.mark.parametrize(
    "call",
    [c for c in CALLS if op_name(c) in BOUNDS and not c.name.endswith(HALF_DTYPES)],
    ids=lambda c: c.name,
)
def test_errors_are_within_their_bounds(call, dtype, isa):
    bound = BOUNDS[op_name(call)]
    if op_name(call) == "weighted_box_fusion" and dtype == torch.bfloat16:
        pytest.skip("rounding decides overlaps that equal the threshold in 8 bits")
    converted = {n: t.to(dtype) if t.is_floating_point() else t for n, t in call.tensors().items()}
    result_dtypes = [t.dtype for t in call.forward(converted) if t.is_floating_point()]
    result_bound = (
        HALF_PRECISION_BOUND
        if {torch.float16, torch.bfloat16} & {*result_dtypes}
        else bound.forward
    )
    gradient_bound = HALF_PRECISION_BOUND if dtype != torch.float32 else bound.backward
    for seed in (len(SEEDS), len(SEEDS) + 1):
        found = errors(call, call.function, dtype, seed)
        assert is_within(found.forward, result_bound), f"{found}, bound {result_bound}, {seed=}"
        assert is_within(found.backward, gradient_bound), (
            f"{found}, bound {gradient_bound}, {seed=}"
        )


def test_nan_in_any_result_gives_a_nan_error():
    call = Call("two", lambda x: [x, x], lambda _: {"x": torch.ones(2)})

    def broken(x):
        return [x, x * torch.nan if x.dtype == torch.float32 else x]

    assert errors(call, call.function, torch.float32, 0).forward == 0
    assert math.isnan(errors(call, broken, torch.float32, 0).forward)


def test_every_op_with_floating_results_has_a_bound():
    assert {op_name(call) for call in CALLS if has_floating_results(call)} == set(BOUNDS)


def test_error_counts_units_of_roundoff():
    one = torch.ones(3, dtype=torch.float64)
    found = one.float()
    found[1] += 3 * 2.0**-23
    assert error(found, one) == 6
    assert error(found.half(), one) == 0
    assert error(one.float() * torch.inf, one * torch.inf) == 0
    assert error(one.float() * torch.nan, one) != error(one.float() * torch.nan, one)


def test_table_prints_bounds_and_errors_of_an_op(monkeypatch):
    monkeypatch.setitem(BOUNDS, "axpy", Pair(8.0, 16.0))
    row = Row(Pair(1.25, 2.0), Pair(12.5, float("nan")), Pair(0.5), Pair(1234.5))
    assert table({"axpy": row}).splitlines()[2:] == [
        "| `axpy` | 8.0 | 1.2 / 12 | 16 | 2.0 / nan | 0.5 / 1,234 |"
    ]


def test_reliability_page_states_the_bounds():
    _, after = PAGE.read_text().split(marks("numbers")[0] + "\n")
    lines = after.split(marks("numbers")[1])[0].splitlines()[2:]
    cells = [[c.strip(" `") for c in line.split("|")[1:-1]] for line in lines]
    bounds_on_page = {op: (forward, backward) for op, forward, _, backward, *_ in cells}
    assert bounds_on_page == {op: tuple(map(text, bound)) for op, bound in BOUNDS.items()}


def test_rounded_returns_values_of_the_narrow_dtype():
    rounded_tensors = rounded(
        {"a": torch.tensor([1.0001, torch.nan]), "b": torch.tensor([3])}, torch.float16
    )
    assert rounded_tensors["a"].dtype == torch.float64 and rounded_tensors["a"].tolist() == [1, 9]
    assert rounded_tensors["b"].dtype == torch.int64
