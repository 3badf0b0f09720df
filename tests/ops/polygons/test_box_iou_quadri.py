"""nms_quadri, and values of box_iou_quadri. test_overlap_contract.py tests the rest of it."""

import math

import pytest
import reference_polygons as reference
import torch
from reference import nms_from_overlaps

import detops
from detops.bench.polygons import plain_nms_quadri, plain_quad_iou

SQUARE = [0.0, 0, 4, 0, 4, 4, 0, 4]
THRESHOLDS = [-0.1, 0.0, 1e-45, 0.2, 1 / 3, 0.5, 0.7, 0.999, 1.0, 1.5, math.inf]


def quads(count=40, kind="convex", dtype=torch.float64, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    return reference.random_quads(generator, count, kind).to(device, dtype)


def test_benchmark_baselines_match_quadri_ops():
    boxes = quads(60)
    boxes[::2] = boxes[::2].view(-1, 4, 2).flip(1).flatten(1)  # counter-clockwise
    corners = boxes.view(-1, 4, 2)
    off_diagonal = ~torch.eye(60, dtype=torch.bool)  # the plain version skips sides that coincide
    plain = plain_quad_iou(corners[:, None], corners)
    torch.testing.assert_close(
        detops.box_iou_quadri(boxes, boxes)[off_diagonal], plain[off_diagonal]
    )
    scores = torch.rand(60, generator=torch.Generator().manual_seed(1))
    for threshold in (0.1, 0.5):
        keep = detops.nms_quadri(boxes, scores, threshold)
        assert torch.equal(keep, plain_nms_quadri(boxes, scores, threshold))


def test_quadrilaterals_of_rotated_boxes_match_box_iou_rotated():
    generator = torch.Generator().manual_seed(2)
    centre = torch.rand(50, 2, generator=generator, dtype=torch.double) * 60
    side = 5 + torch.rand(50, 2, generator=generator, dtype=torch.double) * 40
    angle = torch.rand(50, 1, generator=generator, dtype=torch.double) * 360
    boxes = torch.cat([centre, side, angle], 1)
    corners = detops.box_convert(boxes, "cxcywhr", "xyxyxyxy")
    ours, theirs = detops.box_iou_quadri(corners, corners), detops.box_iou_rotated(boxes, boxes)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def test_box_iou_quadri_matches_known_values(device):
    def iou(a, b, **how):
        a, b = (torch.tensor([x], dtype=torch.float64, device=device) for x in (a, b))
        return detops.box_iou_quadri(a, b, **how).item()

    dart = [0.0, 0, 4, 0, 1, 1, 0, 4]  # a quarter of the square
    for turn in range(4):
        rolled = dart[2 * turn :] + dart[: 2 * turn]
        backward = [x for i in (3, 2, 1, 0) for x in rolled[2 * i : 2 * i + 2]]
        for square in (rolled, backward):
            assert iou(SQUARE, square) == pytest.approx(0.25)
            assert iou(square, SQUARE, mode="iof") == pytest.approx(1)
            assert iou(SQUARE, square, mode="iof") == pytest.approx(0.25)
            assert iou(square, dart) == pytest.approx(1)
            assert iou(square, [2.0, 2, 4, 2, 4, 4, 2, 4]) == 0  # in the notch of the dart
    assert iou(SQUARE, SQUARE) == 1
    assert iou(SQUARE, [4.0, 0, 8, 0, 8, 4, 4, 4]) == 0
    assert iou(SQUARE, [2.0, 0, 6, 0, 6, 4, 2, 4]) == pytest.approx(1 / 3)
    distant = [x + (1e6 if i % 2 else -1e6) for i, x in enumerate(SQUARE)]
    shifted = [x + (2 if i % 2 == 0 else 0) for i, x in enumerate(distant)]
    assert iou(distant, shifted) == pytest.approx(1 / 3, abs=1e-12)
    # A triangle: its fourth corner repeats another.
    assert iou(SQUARE, [0.0, 0, 4, 0, 4, 4, 4, 4]) == pytest.approx(0.5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds", [(2, 3), pytest.param((0, 1, 4, 5), marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["convex", "concave", "any"])
def test_nms_quadri_compares_the_iou_of_box_iou_quadri(kind, dtype, seeds, device, isa):
    """Other tests compare both ops with clipping. Here, their results have the same bits."""
    for seed in seeds:
        boxes = quads(5 + 40 * seed, kind, dtype, device, seed)
        scores = torch.rand(len(boxes), generator=torch.Generator().manual_seed(seed))
        if seed % 2:  # ties
            scores = (scores * 10).round() / 10
        if seed % 3 == 2:
            boxes[:3, seed], scores[2:5] = math.nan, torch.tensor([math.nan, math.inf, 0])
        ious = detops.box_iou_quadri(boxes, boxes).cpu()
        broken = ~boxes.isfinite().all(1).cpu()
        ious[broken] = math.nan
        ious[:, broken] = math.nan
        for threshold in THRESHOLDS:
            keep = detops.nms_quadri(boxes, scores.to(device), threshold)
            assert torch.equal(keep.cpu(), nms_from_overlaps(scores, ious, threshold)), threshold


def test_nms_quadri_matches_reference_on_many_boxes(device):
    """The CUDA kernels need more than one chunk."""
    boxes = quads(700, "concave", torch.float32, device)
    scores = torch.rand(700, generator=torch.Generator().manual_seed(1))
    ious = detops.box_iou_quadri(boxes, boxes).cpu()
    keep = detops.nms_quadri(boxes, scores.to(device), 0.2)
    assert torch.equal(keep.cpu(), nms_from_overlaps(scores, ious, 0.2))


def test_any_number_of_threads_selects_the_same_boxes(two_threads):
    boxes, scores = quads(300, "concave", torch.float32), torch.rand(300)
    one, two = two_threads(lambda: detops.nms_quadri(boxes, scores, 0.3))
    assert torch.equal(one, two)
