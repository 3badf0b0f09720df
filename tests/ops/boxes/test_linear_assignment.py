import math

import pytest
import reference_assignment as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

import detops
from detops.bench.linear_assignment import by_scipy

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
SHAPES = [(1, 1), (1, 9), (9, 1), (3, 10), (10, 3), (8, 8), (17, 16), (16, 17), (100, 100)]
SHAPES += [(300, 50), (50, 300), (64, 65), (900, 7)]


def assert_same_total(cost, objects, expected):
    for image, ours, theirs in zip(cost.cpu(), objects.cpu(), expected.cpu(), strict=True):
        ours, theirs = reference.total(image, ours), reference.total(image, theirs)
        assert ours[0] == theirs[0]
        assert ours[1] == pytest.approx(theirs[1], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_linear_assignment_matches_scipy(isa, device, shape):
    cost = torch.randn(3, *shape).to(device)
    found = detops.linear_assignment(cost)
    assert found.dtype == torch.int64 and found.shape == (3, shape[0])
    assert torch.equal(found.cpu(), by_scipy(cost.cpu()))


@pytest.mark.parametrize("shape", SHAPES)
def test_ties_have_the_same_total_as_scipy(isa, device, shape):
    for values in (1, 3, 50):
        cost = torch.randint(-values, values + 1, (2, *shape)).float().to(device)
        assert_same_total(cost, detops.linear_assignment(cost), by_scipy(cost.cpu()))
    cost = torch.full((1, *shape), 2.5, device=device)
    assert_same_total(cost, detops.linear_assignment(cost), by_scipy(cost.cpu()))


def test_ill_conditioned_costs_have_the_same_total_as_scipy(isa, device):
    """Products have long paths; exponentials have steps of very different size."""
    one = torch.arange(1.0, 81)
    for cost in (one[:, None] * one, -one[:, None] * one, one[:60, None] * one):
        assert_same_total(
            cost[None], detops.linear_assignment(cost[None].to(device)), by_scipy(cost[None])
        )
    cost = torch.exp(30 * torch.randn(2, 40, 30, dtype=torch.double))
    assert_same_total(cost, detops.linear_assignment(cost.to(device)), by_scipy(cost))


def test_small_matrices_match_brute_force(isa, device):
    generator = torch.Generator().manual_seed(0)
    nonfinite = torch.tensor([math.nan, math.inf, -math.inf])
    for queries in range(1, 5):
        for objects in range(1, 5):
            cost = torch.randn(12, queries, objects, generator=generator)
            is_nonfinite = (
                torch.rand(cost.shape, generator=generator)
                < torch.linspace(0, 1, 12)[:, None, None]
            )
            cost = torch.where(
                is_nonfinite, nonfinite[torch.randint(3, cost.shape, generator=generator)], cost
            )
            expected = torch.stack([reference.linear_assignment(c) for c in cost])
            assert torch.equal(detops.linear_assignment(cost.to(device)).cpu(), expected)


@settings(max_examples=60)
@given(st.data())
def test_any_small_matrix_matches_brute_force_total(data):
    shape = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    number = st.one_of(
        st.integers(-3, 3).map(float), st.floats(width=32), st.sampled_from([1e200, 1e201, -1e300])
    )
    cost = torch.tensor(
        [[data.draw(number) for _ in range(shape[1])] for _ in range(shape[0])], dtype=torch.double
    )
    expected = reference.linear_assignment(cost)
    results = []
    for name in ("baseline", "auto"):
        detops._C.set_cpu_isa(name)
        results.append(detops.linear_assignment(cost[None])[0])
        ours, theirs = reference.total(cost, results[-1]), reference.total(cost, expected)
        largest = cost[cost.abs() <= 1e200].abs().amax().item() if ours[0] else 0
        assert ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1e-12 * largest
    assert torch.equal(*results)


def test_pairs_without_finite_cost_stay_unmatched(device):
    cost = torch.tensor([[1.0, 2], [math.nan, math.inf], [0, -math.inf]], device=device)
    batched = torch.stack([cost, torch.full_like(cost, math.nan)])
    assert detops.linear_assignment(batched).tolist() == [[1, -1, 0], [-1, -1, -1]]
    # Two queries compete for one object: the cheaper one wins, not the first.
    one = torch.tensor([[[5.0, math.inf], [1, math.inf]]], device=device)
    assert detops.linear_assignment(one).tolist() == [[-1, 0]]
    # Matches as many pairs as possible, whatever they cost.
    expensive = torch.tensor([[[0.0, 1e30], [1e30, math.inf]]], device=device)
    assert detops.linear_assignment(expensive).tolist() == [[1, 0]]
    # All costs are equal, and one pair has none.
    flat = torch.tensor([[[3.0, math.nan], [3, 3]]], device=device)
    assert detops.linear_assignment(flat).tolist() == [[0, 1]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_costs_are_compared_in_float64(isa, device, dtype):
    cost = torch.randn(4, 40, 30).to(dtype)
    expected = detops.linear_assignment(cost.double())
    assert torch.equal(detops.linear_assignment(cost.to(device)).cpu(), expected)
    assert_same_total(cost, expected, by_scipy(cost.double()))
    if dtype == torch.float32:  # float32 cannot distinguish 1e8 + 2 from 1e8 + 3
        close = torch.tensor([[[1e8, 3.0], [2, 1e8]], [[2, 1e8], [1e8, 3.0]]], device=device)
        assert detops.linear_assignment(close).tolist() == [[1, 0], [0, 1]]
        wide = torch.tensor([[[1e8, 0, 7], [1e8, 1, 7], [1e8, 9, 7.0]]], device=device)
        assert detops.linear_assignment(wide)[0].tolist() in ([1, 0, 2], [1, 2, 0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_num_objects_limits_the_columns_of_each_image(isa, device, dtype):
    cost = torch.randn(6, 30, 40)
    counts = [0, 1, 29, 30, 31, 40]
    expected = torch.stack([by_scipy(c[None, :, :n])[0] for c, n in zip(cost, counts, strict=True)])
    for i, n in enumerate(counts):
        cost[i, :, n:] = math.nan if i % 2 else -100
    num_objects = torch.tensor(counts, dtype=dtype, device=device)
    assert torch.equal(detops.linear_assignment(cost.to(device), num_objects).cpu(), expected)
    alone = [detops.linear_assignment(c[None, :, :n])[0] for c, n in zip(cost, counts, strict=True)]
    assert torch.equal(torch.stack(alone), expected)


def test_num_objects_out_of_range_raises_or_is_clamped(device, values_are_checked):
    cost = torch.randn(3, 5, 4, device=device)
    for invalid, clamped in ((-1, 0), (5, 4), (2**63 - 1, 4), (-(2**63), 0)):
        num_objects = torch.tensor([4, invalid, 2], device=device)
        if values_are_checked:
            message = (
                rf"detops.linear_assignment: num_objects must be 0 to 4, got {invalid} at index 1"
            )
            with pytest.raises(RuntimeError, match=message):
                detops.linear_assignment(cost, num_objects)
        else:
            expected = detops.linear_assignment(cost, torch.tensor([4, clamped, 2], device=device))
            assert torch.equal(detops.linear_assignment(cost, num_objects), expected)


def test_linear_assignment_accepts_any_layout(isa, device):
    padded = torch.randn(4, 31, 50, device=device)
    for view in (padded[::2], padded[:, 3:20], padded[:, :, 7:30], padded[:, :, ::3], padded.mT):
        assert torch.equal(
            detops.linear_assignment(view),
            detops.linear_assignment(view.clone(memory_format=torch.contiguous_format)),
        )
    flat = torch.randn(4, 31, 1, device=device).expand(4, 31, 5)
    assert_same_total(flat, detops.linear_assignment(flat), by_scipy(flat.cpu()))


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0, 0)])
def test_empty_costs_leave_queries_unmatched(device, poison, shape):
    found = detops.linear_assignment(torch.zeros(shape, device=device))
    assert found.shape == shape[:2] and (found == -1).all()
    counts = torch.zeros(shape[0], dtype=torch.int64, device=device)
    assert torch.equal(detops.linear_assignment(torch.zeros(shape, device=device), counts), found)


def test_costs_too_wide_for_block_memory_match_scipy(device):
    cost = torch.randn(2, 6, 2500)
    assert torch.equal(detops.linear_assignment(cost.to(device)).cpu(), by_scipy(cost))


def test_any_number_of_threads_gives_the_same_matching(two_threads):
    cost = torch.randint(0, 20, (16, 80, 60)).float()
    one, two = two_threads(lambda: detops.linear_assignment(cost))
    assert torch.equal(one, two)


def test_devices_and_instruction_sets_agree_on_ties(isa, device):
    cost = torch.randint(0, 3, (5, 40, 40), generator=torch.Generator().manual_seed(3)).float()
    cost = torch.cat([cost, cost[:, :, :25]], 2)
    detops._C.set_cpu_isa("baseline")
    expected = detops.linear_assignment(cost)
    detops._C.set_cpu_isa(isa)
    assert torch.equal(detops.linear_assignment(cost.to(device)).cpu(), expected)


@pytest.mark.slow
def test_linear_assignment_passes_opcheck_compiles_and_vmaps():
    cost, counts = torch.randn(2, 7, 5), torch.tensor([3, 5])
    op = torch.ops.detops.linear_assignment.default
    torch.library.opcheck(op, (cost, counts))
    torch.library.opcheck(op, (cost,))
    compiled = torch.compile(
        detops.linear_assignment, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    expected = detops.linear_assignment(cost, counts)
    assert torch.equal(compiled(cost, counts), expected)
    batched = torch.vmap(detops.linear_assignment)(torch.stack([cost, cost]))
    assert torch.equal(batched[1], detops.linear_assignment(cost))


def test_matching_does_not_require_grad():
    cost = torch.randn(1, 4, 3, requires_grad=True)
    assert not detops.linear_assignment(cost).requires_grad


def test_linear_assignment_rejects_bad_input(device):
    cost = torch.zeros(2, 3, 4, device=device)
    with pytest.raises(RuntimeError, match=r"detops.linear_assignment: cost must be \[B, N, M\]"):
        detops.linear_assignment(cost[0])
    with pytest.raises(RuntimeError, match="detops.linear_assignment: cost must be float"):
        detops.linear_assignment(cost.long())
    with pytest.raises(RuntimeError, match=r"num_objects must be \[2\], got \[3\]"):
        detops.linear_assignment(cost, torch.zeros(3, dtype=torch.int64, device=device))
    with pytest.raises(RuntimeError, match="num_objects must be"):
        detops.linear_assignment(cost, torch.zeros(2, device=device))


def test_scipy_rejects_costs_that_detops_skips():
    for x in (math.nan, -math.inf):
        with pytest.raises(ValueError, match="invalid"):
            linear_sum_assignment(torch.tensor([[x]]))
