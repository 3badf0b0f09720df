"""All cases of overlap ops, and how the contract tests choose among them."""

import math

import pytest
import torch
from contracts import load_cases
from fuzz.case import isas
from hypothesis import given, settings
from hypothesis import strategies as st
from overlap import Overlap

import detops

CASES = load_cases(Overlap)
# Signed, tiny and huge numbers whose products leave the range of float32.
EXTREMES = [0.0, 1.0, 2.0, 7.0, 1e-30, 1e-20, 1e15, 1e18, -1e18, -1e30, 1e30]
VALUES = st.floats(width=32) | st.floats(-100, 100, width=32) | st.sampled_from(EXTREMES)


def is_floating(case):
    return case.inputs.dtypes[0].is_floating_point


def has_gradient(case):
    return bool(case.differentiable)


def each_case(where=lambda case: True, dtypes=False, one_mode=False):
    """Parametrizes a test by the cases without an exception from it.

    Args:
        where: selects cases.
        dtypes: parametrizes by the dtypes of the inputs, too.
        one_mode: leaves all but one mode of each op to the exhaustive tests.
    """

    def decorate(test):
        name = test.__name__.removeprefix("test_")
        parameters, seen = [], set()
        for case in CASES:
            if where(case) and name not in case.exceptions:
                is_repeat = one_mode and (case.op, case.aligned) in seen
                seen.add((case.op, case.aligned))
                marks = [pytest.mark.exhaustive] if is_repeat else []
                for dtype in case.inputs.dtypes if dtypes else [None]:
                    label = f" {str(dtype).removeprefix('torch.')}" if dtypes else ""
                    values = (case, dtype) if dtypes else (case,)
                    parameters.append(pytest.param(*values, id=case.name + label, marks=marks))
        return pytest.mark.parametrize("case, dtype" if dtypes else "case", parameters)(test)

    return decorate


def sample(case, device="cpu", dtype=None, kind=None, n=6, m=9):
    """Returns a few valid elements of each argument."""
    first, second = case.pair(n, m, dtype or case.inputs.dtypes[0], kind)
    return first.to(device), second.to(device)


def assert_equal(found, expected):
    """Asserts that lists of tensors have the same bits."""
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def check_values(case, values, examples, check):
    """Calls ``check`` on each instruction set with elements of any of the values."""
    columns = [math.prod(size) for size in case.inputs.sizes]
    rows = [st.lists(st.tuples(*[values] * c), min_size=1, max_size=4) for c in columns]

    @settings(max_examples=examples)
    @given(*rows)
    def run(first, second):
        for dtype in case.inputs.dtypes:
            pair = case.all_pairs(*(torch.tensor(x, dtype=dtype) for x in (first, second)))
            for isa in isas():
                detops._C.set_cpu_isa(isa)
                check(*pair)

    try:
        run()
    finally:
        detops._C.set_cpu_isa("auto")
