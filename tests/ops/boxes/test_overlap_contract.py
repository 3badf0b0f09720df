"""Properties of every overlap op: its values and derivatives.

Each op is described in a file `cases_<op>.py`. A loss counts as an overlap.
"""

import math
from functools import cache

import pytest
import test_overlap_calls
import torch
from fuzz.case import isas
from hypothesis import given, settings
from hypothesis import strategies as st
from overlap_cases import (
    CASES,
    EXTREMES,
    VALUES,
    assert_equal,
    check_values,
    each_case,
    has_gradient,
    is_floating,
    sample,
)
from torch.autograd import gradcheck

import detops

# Around the lengths of vectors and chunks of vectors; the last size of each is the largest.
SIZES = ((1, 1), (3, 17), (7, 33))  # of matrices
COUNTS = (1, 5, 63, 64, 65, 130)  # of aligned elements
LARGE_SIZES = ((3, 1500), (1500, 3), (70, 1100))  # beyond the tiles of kernels of matrices
FEW_OR_MANY = 25, pytest.param(100, marks=pytest.mark.exhaustive)


def sizes(case):
    return [(n, n) for n in COUNTS] if case.aligned else SIZES


@cache
def expected(case, kind, dtype):
    return case.expected(*case.pair(*sizes(case)[-1], dtype, kind))


def test_exceptions_name_existing_tests():
    names = {name.removeprefix("test_") for name in (*globals(), *vars(test_overlap_calls))}
    assert {name for case in CASES for name in case.exceptions} <= names


@each_case()
def test_inputs_give_a_variety_of_overlaps(case):
    for kind in case.inputs.smooth | case.inputs.tied:
        found = expected(case, kind, case.inputs.dtypes[-1])
        assert found.unique().numel() > 5, kind


@each_case(dtypes=True)
def test_overlap_matches_the_oracle(case, dtype, device, isa):
    for kind in case.inputs.smooth | case.inputs.tied:
        first, second = sample(case, device, dtype, kind, *sizes(case)[-1])
        for n, m in sizes(case):
            found = case.function(first[:n], second[:m])
            expected_value = expected(case, kind, dtype)
            expected_value = expected_value[:n] if case.aligned else expected_value[:n, :m]
            assert found.dtype == (dtype if dtype == torch.float64 else torch.float32)
            rtol, atol = case.tolerances[found.dtype]
            torch.testing.assert_close(found.cpu().double(), expected_value, rtol=rtol, atol=atol)


@pytest.mark.slow  # poison imports the compiler
@each_case()
def test_every_element_of_the_results_is_written(case, device, poison):
    for n, m in sizes(case):
        found = case.results(*sample(case, device, n=n, m=m))
        assert all(x.isfinite().all() for x in found)


@pytest.mark.slow
@pytest.mark.parametrize("examples", FEW_OR_MANY)
@each_case(one_mode=True)
def test_overlap_of_any_pair_matches_the_oracle(case, examples):
    dtype = case.inputs.dtypes[-1]
    rtol, atol = case.tolerances.get(dtype, (0, 0))
    rows = st.tuples(*(st.lists(row, min_size=1, max_size=3) for row in case.inputs.strategies))

    @settings(max_examples=examples)
    @given(rows)
    def check(rows):
        pair = case.all_pairs(*(torch.tensor(x, dtype=dtype) for x in rows))
        expected_value = case.expected(*pair)
        for isa in isas():
            detops._C.set_cpu_isa(isa)
            found = case.function(*pair).double()
            torch.testing.assert_close(found, expected_value, rtol=rtol, atol=atol)

    try:
        check()
    finally:
        detops._C.set_cpu_isa("auto")


@each_case(dtypes=True)
def test_overlap_of_a_box_with_itself_is_one(case, dtype, device, isa):
    """A loss is 0."""
    _, second = sample(case, device, dtype, n=40, m=40)
    found = case.function(case.inputs.to_first(second), second)
    found = found if case.aligned else found.diagonal()
    rtol, atol = case.tolerances[found.dtype]
    if case.self_value == 0:  # losses add 1e-7 to areas
        atol = max(atol, 1e-7)
    torch.testing.assert_close(found, torch.full_like(found, case.self_value), rtol=rtol, atol=atol)


@each_case(lambda case: case.symmetric is not None, dtypes=True)
def test_only_iof_depends_on_argument_order(case, dtype, isa):
    for kind in case.inputs.smooth | case.inputs.tied:
        first, second = sample(case, dtype=dtype, kind=kind, n=40, m=40)
        found, swapped = case.function(first, second), case.function(second, first)
        swapped = swapped if case.aligned else swapped.t()
        assert torch.equal(found, swapped) == case.symmetric, kind


@each_case(lambda case: case.matrix is not None, dtypes=True)
def test_aligned_overlap_is_the_diagonal_of_the_matrix(case, dtype, device, isa):
    for kind in case.inputs.smooth | case.inputs.tied:
        first, second = sample(case, device, dtype, kind, max(COUNTS))
        expected_value = case.matrix(first, second).diagonal()
        for n in COUNTS:
            assert torch.equal(case.function(first[:n], second[:n]), expected_value[:n]), (kind, n)
    degenerate = [torch.tensor(x, dtype=dtype, device=device) for x in case.inputs.degenerate]
    assert torch.equal(
        case.function(*case.all_pairs(*degenerate)), case.matrix(*degenerate).flatten()
    )


@each_case(lambda case: case.matrix is not None and has_gradient(case))
def test_aligned_gradient_is_the_gradient_of_the_diagonal(case, device, isa):
    for kind in case.inputs.smooth | case.inputs.tied:
        first, second = (x.requires_grad_() for x in sample(case, device, kind=kind, n=65))
        weight = torch.linspace(-1, 1, 65, device=device)
        found, expected_value = (
            torch.autograd.grad(x, (first, second), weight)
            for x in (case.function(first, second), case.matrix(first, second).diagonal())
        )
        torch.testing.assert_close(found, expected_value, rtol=1e-4, atol=1e-6)


@each_case(lambda case: case.aligned)
def test_slices_of_a_list_give_the_same_bits_as_the_list(case, device, isa):
    pair = sample(case, device, n=300)
    parts = zip(*(x.split([1, 63, 64, 65, 107]) for x in pair), strict=True)
    parts = [case.results(*part, weights=(1, 1)) for part in parts]
    assert_equal(
        [torch.cat(x) for x in zip(*parts, strict=True)], case.results(*pair, weights=(1, 1))
    )


@each_case(lambda case: not case.aligned)
def test_blocks_of_a_matrix_give_the_same_bits_as_the_matrix(case, device, isa):
    for n, m in LARGE_SIZES:
        first, second = sample(case, device, n=n, m=m)
        rows = [[case.function(a, b) for b in second.split(37)] for a in first.split(37)]
        assert_equal(torch.cat([torch.cat(row, 1) for row in rows]), case.function(first, second))


@each_case(lambda case: case.same_bits, dtypes=True)
def test_every_device_and_instruction_set_gives_the_same_bits(case, dtype, device, isa):
    for kind in case.inputs.smooth | case.inputs.tied:
        pair = sample(case, "cpu", dtype, kind, 50, 70)
        found = [x.cpu() for x in case.results(*(x.to(device) for x in pair))]
        detops._C.set_cpu_isa("baseline")
        assert_equal(found, case.results(*pair))
        detops._C.set_cpu_isa(isa)


@each_case()
def test_any_number_of_threads_gives_the_same_bits(case, two_threads):
    is_upright = case.inputs.sizes[0] == (4,)  # threads take 8192 of these, or 1024 others
    n = 130 if not case.aligned else 17_000 if is_upright else 3_000
    pair = sample(case, n=n, m=300)
    assert_equal(*two_threads(lambda: case.results(*pair)))


@each_case(is_floating, dtypes=True)
def test_elements_without_area_give_a_defined_overlap(case, dtype, device, isa):
    degenerate = [torch.tensor(x, dtype=dtype, device=device) for x in case.inputs.degenerate]
    valid = sample(case, device, dtype)
    for pair in ((degenerate[0], valid[1]), (valid[0], degenerate[1]), degenerate):
        found, *grads = case.results(*case.all_pairs(*pair))
        if case.degenerate_value is None:
            assert all(x.isfinite().all() for x in (found, *grads))
        else:
            assert (found == case.degenerate_value).all() and all((x == 0).all() for x in grads)


def with_nonfinite_values(x):
    """Returns copies of the first element with one number NaN or infinite."""
    count = x.size(1)
    nonfinite = x[:1].repeat(3 * count, 1)
    for i, value in enumerate((math.nan, math.inf, -math.inf)):
        nonfinite[i * count : (i + 1) * count].fill_diagonal_(value)
    return nonfinite


def check_nonfinite(found, value):
    """Asserts that all numbers are the value, or finite if it is None."""
    if value is None:
        assert found.isfinite().all()
    else:
        assert_equal(found, torch.full_like(found, value))


def nonfinite_pairs(case, dtype, device):
    """Returns pairs with a number that is infinite, but not only in the second element, or NaN."""
    first, second = sample(case, device, dtype)
    nonfinite = with_nonfinite_values(first), with_nonfinite_values(second)
    pairs = [(nonfinite[0], second), nonfinite]
    if not case.second_may_be_nonfinite:
        pairs.append((first, nonfinite[1][: second.size(1)]))  # NaN
    return [case.all_pairs(*pair) for pair in pairs]


@each_case(is_floating, dtypes=True)
def test_nonfinite_values_give_a_defined_overlap(case, dtype, device, isa):
    for pair in nonfinite_pairs(case, dtype, device):
        check_nonfinite(case.function(*pair), case.nonfinite_value)


@each_case(has_gradient, dtypes=True)
def test_nonfinite_values_give_a_defined_gradient(case, dtype, device, isa):
    value = None if case.nonfinite_value is None else 0 * case.nonfinite_value
    for pair in nonfinite_pairs(case, dtype, device):
        for grad in case.results(*pair)[1:]:
            check_nonfinite(grad, value)


@each_case(is_floating, dtypes=True)
def test_nonfinite_second_elements_give_defined_results(case, dtype, device, isa):
    first, second = sample(case, device, dtype)
    found, *grads = case.results(*case.all_pairs(first, with_nonfinite_values(second)))
    value = None if case.second_may_be_nonfinite else case.nonfinite_value
    check_nonfinite(found, value)
    for grad in grads:
        check_nonfinite(grad, None if value is None else 0 * value)


@each_case(is_floating)
def test_nonfinite_values_affect_only_their_own_pairs(case, device, isa):
    first, second = sample(case, device, n=40, m=40)
    clean = case.function(first, second)
    first[3, 0] = math.nan
    found = case.function(first, second)
    others = torch.arange(40, device=device) != 3
    assert torch.equal(found[others], clean[others])


@each_case(is_floating, dtypes=True)
def test_huge_and_tiny_elements_give_finite_results(case, dtype, device, isa):
    """In float32, areas overflow or are 0."""
    first, second = sample(case, device, dtype)
    for scale in (1e-30, 1e30):
        for one, two in ((scale, 1), (1, scale), (scale, scale)):
            assert all(x.isfinite().all() for x in case.results(one * first, two * second))


@pytest.mark.slow
@pytest.mark.parametrize("examples", FEW_OR_MANY)
@each_case(is_floating, one_mode=True)
def test_any_values_give_an_overlap_in_range(case, examples):
    def check(first, second):
        found = case.function(first, second)
        if case.symmetric:
            swapped = case.function(second, first)
            assert_equal(found, swapped if case.aligned else swapped.t())
        if case.degenerate_value is not None:
            low, high = sorted((case.degenerate_value, case.self_value))
            assert ((found >= low) & (found <= high)).all()
        elif case.nonfinite_value is None or not math.isnan(case.nonfinite_value):
            assert found.isfinite().all()

    check_values(case, VALUES, examples, check)


@pytest.mark.slow
@pytest.mark.parametrize("examples", FEW_OR_MANY)
@each_case(is_floating, one_mode=True)
def test_extreme_values_give_finite_results(case, examples):
    def check(first, second):
        assert all(x.isfinite().all() for x in case.results(first, second))

    check_values(case, st.sampled_from(EXTREMES), examples, check)


@cache
def differences(case, kind, dtype):
    return case.differences(*sample(case, "cpu", dtype, kind, n=14 if case.aligned else 4, m=5))


@each_case(has_gradient, dtypes=True)
def test_gradient_matches_finite_differences_of_the_oracle(case, dtype, device, isa):
    rtol, atol = (1e-5, 1e-6) if dtype == torch.float64 else (1e-4, 1e-5)
    for kind in case.inputs.smooth:
        pair = sample(case, device, dtype, kind, n=14 if case.aligned else 4, m=5)
        expected_value = differences(case, kind, dtype)
        for x, y in zip(case.results(*pair)[1:], expected_value, strict=True):
            scale = max(float(y.abs().amax()), 0.1)
            torch.testing.assert_close(x.cpu().double(), y, rtol=rtol, atol=atol * scale)


@each_case(has_gradient)
def test_overlap_passes_gradcheck(case, device):
    leaves = [
        x.requires_grad_(i in case.differentiable)
        for i, x in enumerate(sample(case, device, torch.float64, n=8))
    ]
    assert gradcheck(case.function, leaves)


@each_case(is_floating)
def test_unimplemented_derivative_raises(case, device):
    leaves = [x.requires_grad_() for x in sample(case, device)]
    found = case.function(*leaves)
    if case.differentiable:
        inputs = [leaves[i] for i in case.differentiable]
        found = torch.autograd.grad(found.square().sum(), inputs, create_graph=True)[0]
    with pytest.raises(RuntimeError, match=r"derivative for detops::\w+ is not implemented"):
        found.sum().backward()


@each_case(lambda case: case.self_value == 0)
def test_reductions_compute_mean_and_sum(case, device):
    leaves = [x.requires_grad_() for x in sample(case, device, torch.float64, n=12)]
    losses, none = case.function(*leaves), leaves[0][:0]
    assert torch.equal(case.function(*leaves, reduction="none"), losses)
    for reduction in ("mean", "sum"):
        found, expected_value = (
            case.function(*leaves, reduction=reduction),
            getattr(losses, reduction)(),
        )
        torch.testing.assert_close(found, expected_value)
        for x, y in zip(
            torch.autograd.grad(found, leaves),
            torch.autograd.grad(expected_value, leaves, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(x, y)
        value = case.function(none, none, reduction=reduction)
        assert value == 0 and (torch.autograd.grad(value, leaves[0])[0] == 0).all()
    message = f"detops.{case.op}: reduction must be none, mean or sum, got median"
    with pytest.raises(ValueError, match=message):
        case.function(*leaves, reduction="median")
