import math

import pytest
import reference_rotated
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rotated import KINDS, random_boxes

import detops

pytestmark = pytest.mark.slow

THRESHOLDS = [-0.1, 0.0, 1e-45, 1e-40, 0.01, 0.2, 1 / 3, 0.5, 0.7, 0.9, 0.999, 1.0, 1.5, math.inf]


def case(seed, count, kind, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    boxes = random_boxes(generator, count, dtype, kind)
    scores = torch.rand(count, generator=generator, dtype=dtype)
    if seed % 2:  # ties
        scores = (scores * 10).round() / 10
    if seed % 3 == 2:
        for value in (math.nan, math.inf, -math.inf, 0.0, -1.0, 1e30):
            rows = torch.randint(0, count, (3,), generator=generator)
            columns = torch.randint(0, 5, (2,), generator=generator)
            boxes[rows[:2], columns] = value
            scores[rows[2]] = value
    return boxes, scores


def valueless(boxes):
    """Returns the IoU matrix, with NaN where the IoU is undefined and cannot suppress."""
    iou = detops.box_iou_rotated(boxes, boxes)
    size = boxes.double()
    area = (size[:, 2:4].clamp(min=0)).prod(1)
    area = torch.where(size.isfinite().all(1), area, math.nan)
    union = area[:, None] + area
    return torch.where(union > 0, iou, math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*KINDS, "one centre"])
def test_nms_rotated_matches_reference(kind, dtype, isa, two_threads):
    for seed in range(12):
        boxes, scores = case(seed, 3 + 20 * seed, kind, dtype)
        ious = valueless(boxes)
        for threshold in THRESHOLDS:
            expected = reference_rotated.nms_rotated(scores, ious, threshold)
            for keep in two_threads(lambda: detops.nms_rotated(boxes, scores, threshold)):  # noqa: B023
                assert torch.equal(keep, expected), (seed, threshold)


@pytest.mark.parametrize("kind", KINDS)
def test_nms_rotated_matches_polygon_clipping(kind):
    for seed in (0, 1, 3):  # seeds without 1e30, where clipping in global axes fails
        boxes, scores = case(seed, 80, kind, torch.float64)
        ious = reference_rotated.box_iou_rotated(boxes, boxes)
        for threshold in (0.1, 0.3, 0.5, 0.7):
            # The reference and the op may differ where rounding decides.
            if ((ious - threshold).abs() < 1e-12).any():
                continue
            expected = reference_rotated.nms_rotated(scores, ious, threshold)
            assert torch.equal(detops.nms_rotated(boxes, scores, threshold), expected)


def test_nms_rotated_on_device_matches_reference(device):
    for seed, threshold in enumerate((-0.1, 0.0, 0.3, 0.7)):
        for kind in KINDS:
            boxes, scores = case(seed, 600, kind)
            labels = torch.randint(-2, 3, (600,))
            ious = valueless(boxes)
            of_class = torch.where(labels[:, None] == labels, ious, math.nan)
            args = [t.to(device) for t in (boxes, scores, labels)]
            keep = detops.nms_rotated(*args[:2], threshold)
            expected = reference_rotated.nms_rotated(scores, ious, threshold)
            assert torch.equal(keep.cpu(), expected)
            keep = detops.batched_nms_rotated(*args, threshold)
            expected = reference_rotated.nms_rotated(scores, of_class, threshold)
            assert torch.equal(keep.cpu(), expected)


def test_batched_nms_rotated_matches_loop_over_classes(isa, two_threads):
    for seed in range(8):
        boxes, scores = case(seed, 3000 if seed == 0 else 50 * seed, KINDS[seed % 5])
        extremes = torch.tensor([-(2**63), -1, 0, 1, 2**63 - 1])
        labels = extremes[torch.randint(0, 5, (len(boxes),))]
        if seed == 3:
            labels = labels.to(torch.uint8)
        keep = torch.zeros(len(boxes), dtype=torch.bool)
        for label in labels.unique():
            members = torch.nonzero(labels == label).squeeze(1)
            keep[members[detops.nms_rotated(boxes[members], scores[members], 0.3)]] = True
        order = torch.sort(scores + 0, stable=True, descending=True).indices
        for ours in two_threads(lambda: detops.batched_nms_rotated(boxes, scores, labels, 0.3)):  # noqa: B023
            assert torch.equal(ours, order[keep[order]])


@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 6), max_size=12),
    st.sampled_from(THRESHOLDS),
)
def test_nms_rotated_matches_reference_for_any_floats(rows, threshold):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    boxes, scores = table[:, :5], table[:, 5]
    keep = detops.nms_rotated(boxes, scores, threshold)
    assert len(keep.unique()) == len(keep)
    assert torch.equal(keep, reference_rotated.nms_rotated(scores, valueless(boxes), threshold))


def test_nms_rotated_suppresses_only_iou_above_threshold(isa, device):
    boxes = torch.tensor([[0.0, 0, 2, 1, 0], [1, 0, 2, 1, 0]], device=device)
    scores = torch.tensor([1.0, 0.5], device=device)
    iou = detops.box_iou_rotated(boxes[:1], boxes[1:]).item()
    assert iou == torch.tensor(1 / 3).item()
    assert detops.nms_rotated(boxes, scores, math.nextafter(iou, 0)).tolist() == [0]
    assert detops.nms_rotated(boxes, scores, iou).tolist() == [0, 1]


def test_nms_rotated_respects_angles(device):
    """Crossed bars hardly overlap, although their axis-aligned bounding boxes are equal."""
    bars = torch.tensor([[50.0, 50, 100, 4, 45], [50, 50, 100, 4, -45]], device=device)
    scores = torch.tensor([1.0, 0.5], device=device)
    assert detops.nms_rotated(bars, scores, 0.3).tolist() == [0, 1]
    bars[1, 4] = 225
    assert detops.nms_rotated(bars, scores, 0.3).tolist() == [0]


def test_nms_rotated_keeps_first_tie_of_each_class(device):
    boxes = torch.tensor([[0.0, 0, 1, 1, 10]] * 3 + [[5.0, 5, 6, 6, 0]] * 2, device=device)
    ones = torch.ones(5, device=device)
    assert detops.nms_rotated(boxes, ones, 0.5).tolist() == [0, 3]
    labels = torch.tensor([1, 0, 1, 7, 8], device=device)
    assert detops.batched_nms_rotated(boxes, ones, labels, 0.5).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype, device):
    boxes, scores = (t.to(device, dtype) for t in case(2, 300, "mixed"))
    expected = detops.nms_rotated(boxes.float(), scores.float(), 0.3)
    assert torch.equal(detops.nms_rotated(boxes, scores, 0.3), expected)
    assert torch.equal(detops.nms_rotated(boxes, scores.double(), 0.3), expected)


def test_nms_rotated_accepts_strided_and_empty_tensors(device):
    boxes, scores = (t.to(device) for t in case(0, 100, "mixed"))
    expected = detops.nms_rotated(boxes, scores, 0.3)
    assert torch.equal(detops.nms_rotated(boxes.t().contiguous().t(), scores, 0.3), expected)
    wide = torch.stack([scores, scores], 1)[:, 0]
    assert torch.equal(detops.nms_rotated(boxes.repeat(1, 2)[:, :5], wide, 0.3), expected)
    keep = detops.nms_rotated(boxes[:0], scores[:0], 0.5)
    assert keep.shape == (0,) and keep.dtype == torch.int64 and keep.device.type == device
    labels = torch.zeros(0, dtype=torch.int64, device=device)
    assert detops.batched_nms_rotated(boxes[:0], scores[:0], labels, 0.5).shape == (0,)


B, S, L = torch.rand(3, 5), torch.rand(3), torch.zeros(3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: detops.nms_rotated(B[:, :4], S, 0.5),
            r"detops.nms_rotated: boxes must be \[N, 5\], got \[3, 4\]",
        ),
        (
            lambda: detops.nms_rotated(B, S[:2], 0.5),
            r"nms_rotated: scores must be \[3\], got \[2\]",
        ),
        (lambda: detops.nms_rotated(B, S, math.nan), "detops.nms_rotated: iou_threshold must be"),
        (lambda: detops.nms_rotated(B.long(), S, 0.5), "detops.nms_rotated: boxes must be float32"),
        (lambda: detops.nms_rotated(B, S.to("meta"), 0.5), "detops.nms_rotated: scores must be on"),
        (
            lambda: detops.batched_nms_rotated(B, S, S.to(torch.complex64), 0.5),
            "detops.batched_nms_rotated: idxs must be integers",
        ),
    ],
)
def test_nms_rotated_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call()


def test_fake_tensors_raise_the_same_error():
    with torch._subclasses.FakeTensorMode():
        boxes, scores = torch.empty(3, 4), torch.empty(3)
        with pytest.raises(RuntimeError, match=r"detops.nms_rotated: boxes must be \[N, 5\], got"):
            detops.nms_rotated(boxes, scores, 0.5)


def test_nms_rotated_passes_opcheck_compiles_and_autocasts():
    torch.library.opcheck(torch.ops.detops.nms_rotated.default, (B, S, 0.5))
    torch.library.opcheck(torch.ops.detops.batched_nms_rotated.default, (B, S, L, 0.5))

    def call(boxes, scores, labels):
        keep = detops.batched_nms_rotated(boxes, scores, labels, 0.5)
        return boxes[keep], detops.nms_rotated(boxes, scores, 0.5)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for count in (3, 50):
        boxes, scores = case(0, count, "mixed")
        args = (boxes, scores, torch.randint(0, 3, (count,)))
        for got, expected in zip(compiled(*args), call(*args), strict=True):
            assert torch.equal(got, expected)
    boxes, scores = (t.bfloat16() for t in case(0, 50, "mixed"))
    expected = detops.nms_rotated(boxes, scores, 0.5)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.nms_rotated(boxes, scores, 0.5), expected)
