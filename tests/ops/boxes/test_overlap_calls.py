"""Properties of every overlap op: dtypes, layouts, transforms and errors.

Each op is described in a file `cases_<op>.py`. A loss counts as an overlap.
tests/export/test_compile_ops.py compiles every op.
"""

import pytest
import torch
from overlap_cases import assert_equal, each_case, has_gradient, is_floating, sample
from recorder import Recorder

HALVES = (torch.float16, torch.bfloat16)


def dtype_combinations():
    """Yields the dtypes of both arguments, and the one that the op computes in."""
    for half in HALVES:
        yield (half, half), torch.float32
    for narrow in (*HALVES, torch.float32):
        wide = torch.float32 if narrow in HALVES else torch.float64
        yield from (((narrow, wide), wide), ((wide, narrow), wide))
    yield (torch.float16, torch.float64), torch.float64


@each_case(is_floating)
def test_overlap_is_computed_in_the_widest_dtype(case, device, isa):
    for dtypes, wide in dtype_combinations():
        pair = [x.to(d) for x, d in zip(sample(case, device, n=40, m=40), dtypes, strict=True)]
        found = case.function(*pair)
        assert found.dtype == wide, dtypes
        assert torch.equal(found, case.function(*(x.to(wide) for x in pair))), dtypes


@each_case(has_gradient)
def test_gradient_is_rounded_to_the_dtype_of_its_argument(case, device, isa):
    for dtypes, wide in dtype_combinations():
        pair = [x.to(d) for x, d in zip(sample(case, device, n=40, m=40), dtypes, strict=True)]
        found, expected = (
            case.results(*pair)[1:],
            case.results(*(x.to(wide) for x in pair))[1:],
        )
        for k, x, y in zip(case.differentiable, found, expected, strict=True):
            assert x.dtype == dtypes[k] and torch.equal(x, y.to(dtypes[k])), dtypes


@each_case()
def test_empty_arguments_give_empty_results(case, device):
    first, second = sample(case, device)
    empty = [(first[:0], second[:0])]
    empty += [(first[:0], second), (first, second[:0])] if not case.aligned else []
    for pair in empty:
        found, *grads = case.results(*pair)
        expected_shape = (len(pair[0]),) if case.aligned else (len(pair[0]), len(pair[1]))
        assert found.shape == expected_shape and found.dtype == torch.float32
        for k, grad in zip(case.differentiable, grads, strict=True):
            assert grad.shape == pair[k].shape and (grad == 0).all()


def strided(x):
    """Returns the elements of ``x`` in another order in memory, between others."""
    wide = torch.ones(*x.shape[:-1], 2 * x.size(-1), dtype=x.dtype, device=x.device)
    same = wide.transpose(0, -1).contiguous().transpose(0, -1)[..., ::2]
    return same.copy_(x)


@each_case()
def test_strided_arguments_give_the_same_bits(case, device):
    first, second = sample(case, device, n=24, m=18)
    assert_equal(case.results(strided(first), strided(second)), case.results(first, second))
    every_other = case.results(first[::2], second[::2])
    assert_equal(every_other, case.results(first[::2].contiguous(), second[::2].contiguous()))


@each_case(has_gradient)
def test_strided_gradient_gives_the_same_bits(case, device):
    leaves = [
        x.requires_grad_(i in case.differentiable) for i, x in enumerate(sample(case, device))
    ]
    found, inputs = case.function(*leaves), [leaves[i] for i in case.differentiable]
    ones = torch.ones_like(found)
    expected = torch.autograd.grad(found, inputs, ones, retain_graph=True)
    for grad in (ones[..., :1].expand_as(ones), strided(ones.unsqueeze(-1)).squeeze(-1)):
        assert_equal(torch.autograd.grad(found, inputs, grad, retain_graph=True), expected)


@each_case(lambda case: case.aligned)
def test_aligned_arguments_accept_leading_dimensions(case, device):
    first, second = sample(case, device, n=24)
    shaped = case.results(first.view(2, 3, 4, -1), second.view(2, 3, 4, -1))
    assert shaped[0].shape == (2, 3, 4)
    expected = case.results(first, second)
    assert_equal([x.flatten() for x in shaped], [x.flatten() for x in expected])
    assert torch.equal(case.function(first[0], second[0]), expected[0][0])


@each_case(is_floating)
def test_autocast_computes_in_float32(case, device):
    narrow = [x.bfloat16() for x in sample(case, device)]
    with torch.autocast(device, torch.bfloat16):
        found = case.function(*narrow)
    assert torch.equal(found, case.function(*(x.float() for x in narrow)))


@each_case()
def test_vmap_matches_a_loop(case):
    first, second = sample(case)
    first_batch, second_batch = (
        torch.stack([first, first.flip(0)]),
        torch.stack([second, second.roll(1, 0)], 1),
    )
    for in_dims, pairs in (
        ((0, None), [(first, second), (first.flip(0), second)]),
        ((None, 1), [(first, second), (first, second.roll(1, 0))]),
        ((0, 1), [(first, second), (first.flip(0), second.roll(1, 0))]),
    ):
        arguments = (
            first if in_dims[0] is None else first_batch,
            second if in_dims[1] is None else second_batch,
        )
        found = torch.vmap(case.function, in_dims=in_dims)(*arguments)
        assert torch.equal(found, torch.stack([case.function(*pair) for pair in pairs]))


@pytest.mark.slow
@each_case(has_gradient)
def test_func_grad_and_vmap_match_autograd(case):
    pair, argnums = sample(case), case.differentiable
    leaves = [x.clone().requires_grad_() for x in pair]
    expected = torch.autograd.grad(case.function(*leaves).sum(), [leaves[i] for i in argnums])

    def total(*pair):
        return case.function(*pair).sum()

    assert_equal(torch.func.grad(total, argnums)(*pair), expected)
    stacked = [torch.stack([x, x]) for x in pair]
    for grads, x in zip(
        torch.vmap(torch.func.grad(total, argnums))(*stacked), expected, strict=True
    ):
        torch.testing.assert_close(grads, torch.stack([x, x]))


@pytest.mark.slow
@each_case(one_mode=True)
def test_raw_ops_of_an_overlap_pass_opcheck(case):
    pair = sample(case)
    with Recorder() as recorder:
        case.function(*pair)
        case.results(*pair)
    calls = {op: (args, kwargs) for op, args, kwargs in recorder.calls}
    assert len(calls) >= 1 + len(case.differentiable[:1])
    for op, (args, kwargs) in calls.items():
        args = [x.detach() if isinstance(x, torch.Tensor) else x for x in args]
        torch.library.opcheck(op, args, kwargs)


def assert_raises(case, pair, message):
    """Asserts that the op raises one error, which names it and the argument."""
    with pytest.raises(RuntimeError, match=rf"^detops\.{case.op}: {message}") as caught:
        case.function(*pair)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@each_case()
def test_invalid_shapes_raise_one_error(case, device):
    first, second = sample(case, device, n=3, m=3)
    invalid = [
        (0, first[..., :-1] if first.dim() == 2 else first[0]),
        (0, first[..., 0, 0]),
        (1, second[..., :-1]),
        (1, second[..., :1]),
        (1, second[:2] if case.aligned else second[0]),
    ]
    for k, x in invalid:
        sizes = ", ".join(map(str, x.shape))
        pair = (x, second) if k == 0 else (first, x)
        assert_raises(case, pair, rf"{case.inputs.names[k]} must be \[.*\], got \[{sizes}\]")


@each_case()
def test_invalid_dtypes_and_devices_raise_one_error(case):
    first, second = sample(case)
    invalid = torch.bool if is_floating(case) else torch.float32
    for k, name in enumerate(case.inputs.names):
        pair = [x.to(invalid) if i == k else x for i, x in enumerate((first, second))]
        assert_raises(case, pair, rf"{name} must be .*, got {str(invalid).removeprefix('torch.')}")
    message = rf"{case.inputs.names[1]} must be on the device of {case.inputs.names[0]}"
    assert_raises(case, (first, second.to("meta")), message)


@each_case(lambda case: "mode" in getattr(case.function, "keywords", {}))
def test_unknown_mode_raises(case):
    message = rf"detops\.{case.op}: mode must be (\w+, )*\w+ or \w+, got diagonal"
    with pytest.raises((RuntimeError, ValueError), match=message):
        case.function(*sample(case), mode="diagonal")
