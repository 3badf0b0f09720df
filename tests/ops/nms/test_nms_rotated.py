import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import nms_from_overlaps
from reference_rotated import KINDS, random_boxes

import detops

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


def documented_iou(boxes):
    """Returns the IoU of `box_iou_rotated`, with NaN where undefined.

    Other tests compare both ops with polygon clipping. Here, their results have the same bits.
    """
    iou = detops.box_iou_rotated(boxes, boxes)
    size = boxes.double()
    area = (size[:, 2:4].clamp(min=0)).prod(1)
    area = torch.where(size.isfinite().all(1), area, math.nan)
    union = area[:, None] + area
    return torch.where(union > 0, iou, math.nan)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [(0, 1, 5), pytest.param((2, 3, 4, *range(6, 12)), marks=pytest.mark.exhaustive)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [*KINDS, "one centre"])
def test_nms_rotated_compares_the_iou_of_box_iou_rotated(kind, dtype, seeds, isa, two_threads):
    for seed in seeds:
        boxes, scores = case(seed, 3 + 20 * seed, kind, dtype)
        ious = documented_iou(boxes)
        for threshold in THRESHOLDS:
            expected = nms_from_overlaps(scores, ious, threshold)
            for keep in two_threads(lambda: detops.nms_rotated(boxes, scores, threshold)):  # noqa: B023
                assert torch.equal(keep, expected), (seed, threshold)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 6), max_size=12),
    st.sampled_from(THRESHOLDS),
)
def test_nms_rotated_compares_the_iou_of_box_iou_rotated_for_any_floats(rows, threshold):
    table = torch.tensor(rows, dtype=torch.float32).reshape(-1, 6)
    boxes, scores = table[:, :5], table[:, 5]
    keep = detops.nms_rotated(boxes, scores, threshold)
    assert torch.equal(keep, nms_from_overlaps(scores, documented_iou(boxes), threshold))


def test_nms_rotated_of_many_boxes_matches_reference(device):
    """The CUDA kernels need more than one chunk."""
    for seed, threshold in enumerate((-0.1, 0.0, 0.3, 0.7)):
        for kind in KINDS:
            boxes, scores = case(seed, 600, kind)
            labels = torch.randint(-2, 3, (600,))
            ious = documented_iou(boxes)
            class_ious = torch.where(labels[:, None] == labels, ious, math.nan)
            args = [t.to(device) for t in (boxes, scores, labels)]
            keep = detops.nms_rotated(*args[:2], threshold)
            assert torch.equal(keep.cpu(), nms_from_overlaps(scores, ious, threshold))
            keep = detops.batched_nms_rotated(*args, threshold)
            assert torch.equal(keep.cpu(), nms_from_overlaps(scores, class_ious, threshold))


def test_nms_rotated_keeps_crossing_boxes_of_different_angles(device):
    """Crossed bars hardly overlap, although their axis-aligned bounding boxes are equal."""
    bars = torch.tensor([[50.0, 50, 100, 4, 45], [50, 50, 100, 4, -45]], device=device)
    scores = torch.tensor([1.0, 0.5], device=device)
    assert detops.nms_rotated(bars, scores, 0.3).tolist() == [0, 1]
    bars[1, 4] = 225
    assert detops.nms_rotated(bars, scores, 0.3).tolist() == [0]
