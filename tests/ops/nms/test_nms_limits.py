"""NMS with ``score_threshold`` and ``max_output``."""

import math
from functools import partial

import numpy as np
import pytest
import reference
import torch
from test_nms import crowd_case, odd_case, sparse_case

import detops

FAMILY = ("nms", "batched_nms", "nms_rotated", "batched_nms_rotated")
SCORES = (-math.inf, 0.3, math.inf)


def given(name, boxes, scores, labels=None):
    if "rotated" in name:
        angle = (boxes[:, :1] * 7).nan_to_num(0, 0, 0)
        boxes = torch.cat([detops.box_convert(boxes, "xyxy", "cxcywh"), angle], 1)
    if not name.startswith("batched"):
        return boxes, scores
    return boxes, scores, torch.arange(len(boxes)) % 3 if labels is None else labels


def limited(name, tensors, iou_threshold, score_threshold, max_output):
    """Filters by score, runs the whole op, then truncates its result."""
    index = torch.arange(len(tensors[0]))
    if score_threshold is not None:
        index = (tensors[1].double() > score_threshold).nonzero()[:, 0]
    keep = getattr(detops, name)(*(t[index] for t in tensors), iou_threshold)
    return index[keep][:max_output]


def check(name, tensors, iou_threshold, score_threshold, max_output, device="cpu"):
    found = getattr(detops, name)(
        *(t.to(device) for t in tensors),
        iou_threshold,
        score_threshold=score_threshold,
        max_output=max_output,
    )
    assert found.dtype == torch.int64 and found.device.type == device
    expected = limited(name, tensors, iou_threshold, score_threshold, max_output)
    assert torch.equal(found.cpu(), expected), (iou_threshold, score_threshold, max_output)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_limits_match_filtering_then_nms_then_truncation(name, dtype, device, isa):
    rng = np.random.default_rng(0)
    for count in (0, 1, 40, 600):
        tensors = given(name, *odd_case(rng, count, dtype))
        for threshold in (-0.1, 0.01, 0.5):
            kept = len(getattr(detops, name)(*tensors, threshold))
            for most in (0, max(0, kept - 1), 2**31 - 1):
                check(name, tensors, threshold, None, most, device)
            for score in SCORES:
                check(name, tensors, threshold, score, int(rng.integers(0, count + 1)), device)
                check(name, tensors, threshold, score, None, device)


@pytest.mark.parametrize("threshold", [0.001, 0.3])
@pytest.mark.parametrize("kind", ["uniform", "sizes", "broken", "disjoint", "nested"])
def test_limits_hold_when_nms_uses_an_index(kind, threshold, isa):
    """Keeps so many boxes that NMS uses an index, for each kind of index."""
    case = crowd_case if kind in ("disjoint", "nested") else sparse_case
    boxes, scores = case(np.random.default_rng(1), kind, 4000)
    for dtype in (torch.float32, torch.float64):
        tensors = boxes.to(dtype), scores.to(dtype)
        kept = len(detops.nms(*tensors, threshold))
        for most in (5, kept // 2, kept - 1, kept, kept + 1):
            check("nms", tensors, threshold, None, most)
            check("nms", tensors, threshold, 0.25, most)


def test_limits_hold_for_many_boxes_and_any_thread_count(two_threads):
    boxes, scores = sparse_case(np.random.default_rng(2), "uniform", 40_000)
    boxes, scores = boxes.float(), scores.float()
    labels = torch.arange(len(boxes)) // 35_000
    for name in ("nms", "batched_nms"):
        tensors = given(name, boxes, scores, labels)
        for most in (10, 2000, 3000, 39_000):
            found = two_threads(
                lambda: getattr(detops, name)(*tensors, 0.5, max_output=most)  # noqa: B023
            )
            for keep in found:
                assert torch.equal(keep, limited(name, tensors, 0.5, None, most))
            keep, count = detops.nms_padded(boxes, scores, 0.5, most)
            assert torch.equal(keep[:count], detops.nms(boxes, scores, 0.5, max_output=most))


def test_nan_score_is_kept_only_without_score_threshold(device):
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 0, 30, 10]], device=device)
    scores = torch.tensor([math.nan, 0.1, -math.inf], device=device)
    assert detops.nms(boxes, scores, 0.5).tolist() == [0, 2]
    assert detops.nms(boxes, scores, 0.5, max_output=1).tolist() == [0]
    assert detops.nms(boxes, scores, 0.5, score_threshold=-math.inf).tolist() == [1]
    assert detops.nms(boxes, scores, 0.5, score_threshold=0.1).tolist() == [1]  # not a float32
    assert detops.nms(boxes, scores.double(), 0.5, score_threshold=0.2).tolist() == []


def test_score_threshold_is_compared_in_float64(device):
    boxes, half = torch.zeros(1, 4, device=device), torch.tensor([0.1], device=device).half()
    value = half.double().item()
    assert detops.nms(boxes, half, 0.5, score_threshold=value).tolist() == []
    assert detops.nms(boxes, half, 0.5, score_threshold=math.nextafter(value, 0)).tolist() == [0]


def test_limited_nms_accepts_strided_tensors(device):
    boxes, scores = odd_case(np.random.default_rng(3), 200)
    strided = boxes.t().contiguous().t().to(device), torch.stack([scores, scores], 1)[:, 0]
    found = detops.nms(strided[0], strided[1].to(device), 0.5, score_threshold=0.2, max_output=9)
    assert torch.equal(found.cpu(), limited("nms", (boxes, scores), 0.5, 0.2, 9))


@pytest.mark.parametrize("method", ["linear", "gaussian", "naive"])
def test_soft_nms_max_output_truncates_result(method, device, isa):
    boxes, scores = odd_case(np.random.default_rng(4), 150)
    keep, values = detops.soft_nms(boxes, scores, method=method)
    for most in (0, 1, 7, len(keep) - 1, len(keep), len(keep) + 1, 2**31 - 1):
        found = detops.soft_nms(boxes.to(device), scores.to(device), method=method, max_output=most)
        assert torch.equal(found[0].cpu(), keep[:most])
        torch.testing.assert_close(found[1].cpu(), values[:most])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_nms_match_matches_reference_and_nms(dtype, device, isa):
    rng = np.random.default_rng(5)
    for count in (0, 1, 2, 17, 60, 150, 300):
        boxes, scores = odd_case(rng, count, dtype)
        for threshold in (-0.1, 0.0, 1e-40, 0.1, 0.5, 1.0):
            if count == 300 and threshold != 0.5:
                continue
            match = detops.nms_match(boxes.to(device), scores.to(device), threshold)
            assert match.dtype == torch.int64 and match.device.type == device
            rounded = np.float64 if dtype == torch.float64 else np.float32
            expected = reference.nms_match(boxes, scores, threshold, rounded)
            assert torch.equal(match.cpu(), expected), threshold
            kept = match.cpu() == torch.arange(count)
            keep = detops.nms(boxes, scores, threshold)
            assert torch.equal(kept.nonzero()[:, 0], keep.sort().values)


def test_nms_match_assigns_ties_to_first_box_in_any_layout(device):
    boxes = torch.tensor([[0.0, 0, 10, 10], [2, 0, 12, 10], [4, 0, 14, 10]], device=device)
    scores = torch.ones(3, device=device)
    # The middle box overlaps both others and matches the first.
    assert detops.nms_match(boxes, scores, 0.5).tolist() == [0, 0, 2]
    strided = boxes.t().contiguous().t()
    assert detops.nms_match(strided, scores.expand(2, 3)[0], 0.5).tolist() == [0, 0, 2]
    assert detops.nms_match(boxes, scores, 0.67).tolist() == [0, 1, 2]


B, S, L = torch.rand(3, 4), torch.rand(3), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize("name", [*FAMILY, "soft_nms"])
def test_nms_family_rejects_bad_limits(name):
    tensors = given(name, B, S)
    function = partial(getattr(detops, name), *tensors, 0.5)
    with pytest.raises(RuntimeError, match=f"detops.{name}: max_output must be at least 0, got -1"):
        function(max_output=-1)
    with pytest.raises(RuntimeError, match=f"detops.{name}: max_output must be at most 2147483647"):
        function(max_output=2**31)
    if name != "soft_nms":
        with pytest.raises(
            RuntimeError, match=f"detops.{name}: score_threshold must be a number, got nan"
        ):
            function(score_threshold=math.nan)
    with pytest.raises(TypeError):
        function(0.1, 5, "linear", 3, 4)  # limits are keyword-only


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.nms_match(B[:, :3], S, 0.5), r"boxes must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.nms_match(B, S[:2], 0.5), r"scores must be \[3\], got \[2\]"),
        (lambda: detops.nms_match(B, S, math.nan), "iou_threshold must be a number, got nan"),
        (lambda: detops.nms_match(B, L, 0.5), "scores must be float32.*got int64"),
    ],
)
def test_nms_match_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.nms_match: {message}"):
        call()


@pytest.mark.slow
def test_limited_ops_pass_opcheck():
    ops = torch.ops.detops
    for limits in ((None, None), (0.2, None), (None, 2), (0.2, 2)):
        torch.library.opcheck(ops.nms.default, (B, S, 0.5, *limits))
        torch.library.opcheck(ops.batched_nms.default, (B, S, L, 0.5, *limits))
        torch.library.opcheck(ops.nms_rotated.default, (*given("nms_rotated", B, S), 0.5, *limits))
    torch.library.opcheck(ops.soft_nms.default, (B, S, 0.3, 0.5, 1e-3, "linear", 2))
    torch.library.opcheck(ops.nms_match.default, (B, S, 0.5))


@pytest.mark.slow
def test_compiled_limited_ops_match_eager():
    def call(boxes, scores):
        keep = detops.nms(boxes, scores, 0.5, score_threshold=0.2, max_output=7)
        return keep, detops.nms_match(boxes, scores, 0.5)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 30):
        boxes, scores = odd_case(np.random.default_rng(count), count)
        for found, expected in zip(compiled(boxes, scores), call(boxes, scores), strict=True):
            assert torch.equal(found, expected)
