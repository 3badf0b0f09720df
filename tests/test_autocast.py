"""Under autocast no op, and no backward pass, computes in less than float32."""

import pytest
import raw_calls
import torch
from calls import CALLS
from input_worker import run


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        # Outputs may come in another dtype; what they hold may not differ by more than it rounds.
        rounding = max(
            torch.finfo(t.dtype).eps if t.is_floating_point() else 0 for t in (one, other)
        )
        one, other = one.double(), other.double()
        scale = other.abs().amax() if other.numel() else 0
        torch.testing.assert_close(one, other, rtol=4 * rounding, atol=float(4 * rounding * scale))


@pytest.mark.parametrize("backward", ["outside", "inside"])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_every_call(device, call, backward):
    tensors = call.tensors(device)
    expected = call.results(tensors)
    with torch.autocast(device, torch.bfloat16):
        outputs = call.forward(tensors)
        found = call.backward(tensors, outputs) if backward == "inside" else None
    if found is None:
        found = call.backward(tensors, outputs)
    close([*outputs, *found], expected)
    assert all(t.dtype == tensors[name].dtype for t, name in zip(found, call.wants, strict=True))


@pytest.mark.parametrize("name", raw_calls.schema_ops())
def test_every_raw_op(name):
    op, arguments = getattr(torch.ops.detops, name), raw_calls.arguments()[name]
    expected = run(op, arguments)
    with torch.autocast("cpu", torch.bfloat16):
        found = run(op, arguments)
    close(found, expected)
