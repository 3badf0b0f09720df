"""Calls of every suppression op: layouts, dtypes, threads, transforms and errors."""

import contextlib
import math
import re

import pytest
import torch
from recorder import Recorder
from suppression import Detections, each_case, same
from torch._subclasses import FakeTensorMode

import detops

WIDE = (torch.float32, torch.float64)
HALF = (torch.float16, torch.bfloat16)


@each_case()
def test_memory_layout_does_not_change_the_results(case, device):
    detections = case.sample(100).to(torch.float32, device)
    expected_outputs = case.outputs(detections, 0.5)
    copies = [t.clone() for t in detections]
    boxes, scores, labels = detections
    for strided in (boxes.mT.contiguous().mT, torch.cat([boxes] * 2, -1)[..., : boxes.shape[-1]]):
        assert not strided.is_contiguous()
        assert same(case.outputs(detections._replace(boxes=strided), 0.5), expected_outputs)
    every_second = Detections(*(t.repeat_interleave(2, 0)[1::2] for t in detections))
    assert same(case.outputs(every_second, 0.5), expected_outputs)
    # Views that start within their memory, where vectors may not be aligned.
    unaligned = Detections(*(torch.cat([t[:1], t])[1:] for t in detections))
    assert same(case.outputs(unaligned, 0.5), expected_outputs)
    assert same(detections, copies)


@each_case()
@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_is_computed_in_float32(case, dtype, device):
    half = case.sample(300, "odd").to(dtype, device)
    wide = half.to(torch.float32)
    expected_outputs = case.outputs(wide, 0.3)
    assert same(case.outputs(half._replace(scores=wide.scores), 0.3), expected_outputs)
    found = case.outputs(half, 0.3)
    assert same(found, [t.to(dtype) if t.is_floating_point() else t for t in expected_outputs])
    # The dtype of the scores affects only the dtype of changed scores.
    wide = wide.to(torch.float64)
    found = case.outputs(wide._replace(scores=half.scores), 0.3)
    expected_outputs = case.outputs(wide, 0.3)
    assert same(found, [t.to(dtype) if t.is_floating_point() else t for t in expected_outputs])


@pytest.mark.skipif(detops._C.emulated, reason="compares CPU kernels")
@each_case()
@pytest.mark.parametrize("dtype", WIDE)
def test_isa_thread_count_and_device_do_not_change_the_bits(case, dtype, device, isa, two_threads):
    for kind in case.boxes.kinds:
        detections = case.boxes.random(kind, case.parallel_count, "tied").to(dtype)
        detops._C.set_cpu_isa("baseline")
        expected_outputs = case.outputs(detections, 0.5)
        detops._C.set_cpu_isa(isa)
        on_device = detections.to(dtype, device)
        for found in two_threads(lambda: case.outputs(on_device, 0.5)):  # noqa: B023
            assert same(found, expected_outputs), kind


def assert_raises(case, detections, threshold, message, **options):
    """Asserts the error in eager mode, in inference mode and for fake tensors."""
    fake = FakeTensorMode()
    calls = [(contextlib.nullcontext(), detections), (torch.inference_mode(), detections)]
    if not any(t.is_meta for t in detections):
        calls.append((fake, Detections(*map(fake.from_tensor, detections))))
    for mode, tensors in calls:
        with mode, pytest.raises(RuntimeError, match=f"^detops.{case.op}: {message}"):
            case.outputs(tensors, threshold, **options)


@each_case()
def test_malformed_tensors_raise(case, device):
    detections, name = case.sample(3).to(torch.float32, device), case.boxes.argument
    boxes, scores, labels = detections
    expected = re.escape(f"{name} must be {case.boxes.shape}, got ")
    narrower = [boxes[:, :-1]] if boxes.dim() == 2 else []
    for changed in (boxes[0], boxes[None], *narrower):
        message = expected + re.escape(str(list(changed.shape)))
        assert_raises(case, detections._replace(boxes=changed), 0.5, message)
    assert_raises(case, detections._replace(boxes=boxes.long()), 0.5, f"{name} must be .*got int64")
    for changed in (scores[:2], scores[:, None]):
        message = re.escape(f"scores must be [3], got {list(changed.shape)}")
        assert_raises(case, detections._replace(scores=changed), 0.5, message)
    floating = "scores must be float32.*got int64"
    assert_raises(case, detections._replace(scores=scores.long()), 0.5, floating)
    on_other_device = detections._replace(scores=scores.to("meta"))
    assert_raises(case, on_other_device, 0.5, f"scores must be on the device of {name}")
    if case.separates_labels:
        too_short = detections._replace(labels=labels[:2])
        assert_raises(case, too_short, 0.5, re.escape("idxs must be [3], got [2]"))
        complex_labels = detections._replace(labels=labels.to(torch.complex64))
        assert_raises(case, complex_labels, 0.5, "idxs must be integers")


@each_case()
def test_nan_threshold_raises(case, device):
    detections = case.sample(3).to(torch.float32, device)
    assert_raises(case, detections, math.nan, "iou_threshold must be a number, got nan")


@each_case(lambda case: case.limits)
def test_invalid_limits_raise(case, device):
    detections = case.sample(3).to(torch.float32, device)
    for name, value, message in (
        ("max_output", -1, "must be at least 0, got -1"),
        ("max_output", 2**31, "must be at most 2147483647"),
        ("score_threshold", math.nan, "must be a number, got nan"),
    ):
        if name in case.limits:
            assert_raises(case, detections, 0.5, f"{name} {message}", **{name: value})


def limits_of(case):
    """Returns options without limits, with each limit and with all."""
    one = [{name: {"score_threshold": 0.2, "max_output": 2}[name]} for name in case.limits]
    return [{}, *one] if len(one) < 2 else [{}, *one, one[0] | one[1]]


@pytest.mark.slow
@each_case()
def test_op_passes_opcheck(case):
    for options in limits_of(case):
        with Recorder() as recorded:
            case.outputs(case.sample(5), 0.5, **options)
        ((op, args, kwargs),) = recorded.calls
        torch.library.opcheck(op, args, kwargs)


@pytest.mark.exhaustive
@each_case()
def test_compiled_call_matches_eager(case):
    def call(*tensors):
        detections, results = Detections(*tensors), []
        for options in limits_of(case):
            found = case.outputs(detections, 0.5, **options)
            indices = found[0].dtype == torch.int64
            results += [*found, detections.boxes[found[0]]] if indices else found
        return results

    torch.compiler.reset()  # otherwise one function would have too many versions
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 50):
        detections = case.sample(count)
        assert same(compiled(*detections), call(*detections))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@each_case()
def test_vmap_matches_a_loop(case, device):
    one = case.sample(40, "distinct").to(torch.float32, device)
    pair = [one, Detections(*(t.flip(0) for t in one))]  # keeps the same number of boxes
    batch = Detections(*(torch.stack(parts) for parts in zip(*pair, strict=True)))
    found = torch.vmap(lambda *detections: case.outputs(Detections(*detections), 0.5))(*batch)
    each = zip(*(case.outputs(detections, 0.5) for detections in pair), strict=True)
    assert same(found, [torch.stack(parts) for parts in each])


@each_case()
def test_autocast_computes_in_float32(case, device):
    for dtype in (torch.float32, torch.bfloat16):
        detections = case.sample(100).to(dtype, device)
        expected_outputs = case.outputs(detections.to(torch.float32), 0.5)
        with torch.autocast(device, torch.bfloat16):
            assert same(case.outputs(detections, 0.5), expected_outputs), dtype


@each_case(lambda case: case.rescores)
def test_backward_of_changed_scores_raises(case):
    detections = case.sample(100)
    _, scores = case.outputs(detections._replace(scores=detections.scores.requires_grad_()), 0.5)
    with pytest.raises(RuntimeError, match=f"the derivative for detops::{case.op} is not"):
        scores.sum().backward()
