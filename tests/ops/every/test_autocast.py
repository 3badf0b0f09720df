"""Ops and their backward passes compute in at least float32 under autocast."""

import pytest
import raw_calls
import torch
from calls import CALLS
from input_worker import run
from torch.utils._pytree import tree_leaves

import detops


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        # Output dtypes may differ, but values only by the rounding of the coarser dtype.
        rounding = max(
            torch.finfo(t.dtype).eps if t.is_floating_point() else 0 for t in (one, other)
        )
        one, other = one.double(), other.double()
        scale = other.abs().amax() if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=4 * rounding, atol=float(4 * rounding * scale))


@pytest.mark.parametrize("backward", ["outside", "inside"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_calls_compute_in_float32_under_autocast(device, call, backward):
    tensors = call.tensors(device)
    expected = call.results(tensors)
    with torch.autocast(device, torch.bfloat16):
        outputs = call.forward(tensors)
        found = call.backward(tensors, outputs) if backward == "inside" else None
    if found is None:
        found = call.backward(tensors, outputs)
    assert_close([*outputs, *found], expected)
    assert all(
        t.dtype == tensors[name].dtype for t, name in zip(found, call.differentiable, strict=True)
    )


@pytest.mark.parametrize("name", raw_calls.schema_ops())
def test_raw_ops_compute_in_float32_under_autocast(name):
    op, arguments = getattr(torch.ops.detops, name), raw_calls.arguments(name)
    expected = run(op, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(op, arguments)
    assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize(
    "name", ["encode_boxes", "decode_boxes", "axpy", "mlp", "lltm_cell", "lltm"]
)
def test_functions_and_ops_agree_in_at_least_float32(name, dtype):
    arguments = raw_calls.arguments(name)
    converted = {k: x.to(dtype) if isinstance(x, torch.Tensor) else x for k, x in arguments.items()}
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (getattr(ops, name)(**converted) for ops in (detops, torch.ops.detops))
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert one.dtype == other.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(one, other)
