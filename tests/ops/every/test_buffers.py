"""Output buffers: each needs its own memory, and an op writes it completely or not at all."""

import random

import numpy as np
import pytest
import raw_calls
import torch
from fuzz.case import map_tensors, written_by
from fuzz.values import LAYOUTS
from torch._subclasses.fake_tensor import FakeTensorMode

from detops.compat import buffers

ARGUMENTS = raw_calls.calls()
OPS = [op for op in ARGUMENTS if written_by(op)]
BUFFERS = [(op, name) for op in OPS for name in written_by(op)]
# Each op writes its buffers in this order.
WRITE_ORDER = ["output", "out", "top_count", "gradInput", "gradOffset", "gradWeight", "input_grad"]
WRITE_ORDER += ["trans_grad", "grad_input", "grad_offset", "grad_mask", "grad_weight", "grad_bias"]
IGNORED = ("columns", "ones")


def call(op, args):
    return getattr(torch.ops.detops, op)(**args)


def arguments_with_output(op, **changed):
    """Returns the arguments with buffers of the right size that hold the op's output."""
    args = ARGUMENTS[op] | {name: ARGUMENTS[op][name].clone() for name in written_by(op)}
    call(op, args | changed)
    return args


def arguments_with_ones(op):
    """Returns the arguments with buffers of the right size, filled with ones."""
    args = arguments_with_output(op)
    return args | {name: torch.ones_like(args[name]) for name in written_by(op)}


def assert_rejected(op, args, name, what):
    before = {name: args[name].detach().clone() for name in written_by(op)}
    with pytest.raises(RuntimeError) as error:
        call(op, args)
    assert str(error.value).split("\n")[0].startswith(f"detops.{op}: {name}"), error.value
    assert what in str(error.value)
    for name, values in before.items():
        assert torch.equal(args[name].detach(), values), name
    return str(error.value)


@pytest.mark.parametrize(("op", "name"), BUFFERS)
def test_op_rejects_buffer_with_overlapping_elements(op, name):
    args = arguments_with_ones(op)
    shape = args[name].shape
    expanded = torch.ones(shape[1:]).expand(shape)
    sliding = torch.ones(args[name].numel()).as_strided(shape, [1] * len(shape))
    for buffer in (expanded, sliding)[: len(shape)]:
        assert_rejected(op, args | {name: buffer}, name, "must not overlap itself in memory")


@pytest.mark.parametrize(("op", "name"), BUFFERS)
def test_op_rejects_buffer_that_requires_a_gradient(op, name):
    args = arguments_with_ones(op)
    leaf = torch.ones_like(args[name], requires_grad=True)
    for buffer in (leaf, leaf.view(leaf.shape), leaf * 1):
        assert_rejected(op, args | {name: buffer}, name, "must not require a gradient")
    with torch.no_grad():
        expected = args | {name: torch.ones_like(leaf)}
        call(op, expected)
        call(op, args | {name: leaf})
        assert torch.equal(leaf, expected[name])


@pytest.mark.parametrize(("op", "name"), BUFFERS)
def test_op_rejects_buffer_that_cannot_be_resized(op, name):
    args = arguments_with_ones(op)
    if ARGUMENTS[op][name].numel():
        pytest.skip("the op requires this size")
    with torch.no_grad():
        leaf = torch.ones(1, requires_grad=True)
        assert_rejected(op, args | {name: leaf}, name, "which requires a gradient, must be [")
    fixed = torch.frombuffer(bytearray(4), dtype=torch.float32)
    assert_rejected(op, args | {name: fixed}, name, "which has memory of fixed size, must be [")
    with torch.inference_mode():
        other = torch.ones(1)
    assert_rejected(op, args | {name: other}, name, "must not be an inference tensor")


@pytest.mark.parametrize(("op", "name"), BUFFERS)
def test_op_rejects_buffer_that_shares_memory(op, name):
    args = arguments_with_ones(op)
    is_resized = not ARGUMENTS[op][name].numel()
    for other, x in args.items():
        if other in (name, *IGNORED) or not isinstance(x, torch.Tensor):
            continue
        first = min(name, other, key=WRITE_ORDER.index) if other in written_by(op) else other
        last = other if first == name else name
        memory = torch.ones(max(x.numel(), args[name].numel()))
        shared = memory[: x.numel()].view(x.shape).copy_(x)
        buffer = memory[: args[name].numel()].view(args[name].shape)
        changed = args | {other: shared, name: buffer}
        message = assert_rejected(op, changed, last, f"must not share memory with {first}")
        with FakeTensorMode() as mode, pytest.raises(RuntimeError) as error:
            call(op, {k: map_tensors(v, mode.from_tensor) for k, v in changed.items()})
        assert str(error.value) == message
        if is_resized and other not in written_by(op):
            assert_rejected(
                op, changed | {name: memory[:0]}, name, f"must not share memory with {other}"
            )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("layout", dict.fromkeys(LAYOUTS), ids=lambda layout: layout.__name__)
def test_op_writes_buffers_of_any_layout(op, layout):
    args = arguments_with_ones(op)
    rng = random.Random(op)
    buffers_in_layout = {name: layout(torch.ones_like(args[name]), rng) for name in written_by(op)}
    changed = args | buffers_in_layout
    if layout.__name__ in ("expanded", "negated"):
        with pytest.raises(RuntimeError, match=f"^detops.{op}: "):
            call(op, changed)
        return
    call(op, args), call(op, changed)
    for name in written_by(op):
        assert torch.equal(args[name], changed[name]), name


def test_buffers_may_be_parts_of_one_tensor():
    op = "modulated_deform_conv_backward"
    args = arguments_with_ones(op)
    n, _, height, width = args["grad_offset"].shape
    offsets, masks = args["grad_offset"].size(1), args["grad_mask"].size(1)
    parts = torch.ones(n, offsets + masks, height, width).split([offsets, masks], 1)
    changed = args | {"grad_offset": parts[0], "grad_mask": parts[1]}
    call(op, args), call(op, changed)
    assert torch.equal(parts[0], args["grad_offset"])
    assert torch.equal(parts[1], args["grad_mask"])


@pytest.mark.parametrize(("op", "name"), BUFFERS)
def test_buffer_may_interleave_with_another_argument(op, name):
    for other, x in arguments_with_ones(op).items():
        if other in (name, *written_by(op), *IGNORED) or not isinstance(x, torch.Tensor):
            continue
        args, changed = arguments_with_ones(op), arguments_with_ones(op)
        memory = torch.ones(max(x.numel(), args[name].numel()), 2)
        changed[other] = memory[: x.numel(), 0].view(x.shape).copy_(x)
        changed[name] = memory[: args[name].numel(), 1].view(args[name].shape)
        call(op, args), call(op, changed)
        assert torch.equal(args[name], changed[name]), other


@pytest.mark.parametrize("op", OPS)
def test_errors_name_the_op_that_was_called(op):
    for name, x in arguments_with_ones(op).items():
        if isinstance(x, torch.Tensor) and name not in (*IGNORED, *written_by(op)):
            with pytest.raises(RuntimeError, match=f"^detops.{op}: "):
                call(op, arguments_with_ones(op) | {name: x.to(torch.complex64)})


def test_share_memory_matches_numpy():
    rng = random.Random(0)
    found = {True: 0, False: 0}

    def view(memory):
        x = memory.view(rng.choice([torch.float64, torch.float32, torch.float16]))
        shape = [rng.choice([1, 2, 3, 4]) for _ in range(rng.randrange(4))]
        strides = [rng.choice([0, 1, 2, 3, 4, 6, 12]) for _ in shape]
        return x.as_strided(shape, strides, rng.randrange(40))

    for _ in range(3000):
        memory = torch.zeros(120, dtype=torch.float64)
        a, b = view(memory), view(memory)
        shared = np.shares_memory(a.numpy(), b.numpy())
        assert buffers._share_memory(a, a.shape, b, b.shape) == shared, (a.stride(), b.stride())
        found[shared] += 1
    assert min(found.values()) > 300
