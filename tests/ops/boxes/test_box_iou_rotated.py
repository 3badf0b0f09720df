"""Invariances of box_iou_rotated. test_overlap_contract.py tests most properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rotated import random_boxes

import detops

OCTAGON = 2 * (math.sqrt(2) - 1)  # overlap of a unit square and itself rotated by 45 degrees


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_box_iou_rotated_matches_known_values(dtype, device):
    def iou(a, b):
        a, b = (torch.tensor([x], dtype=dtype, device=device) for x in (a, b))
        return detops.box_iou_rotated(a, b).item()

    tolerance = {"rel": 1e-7 if dtype == torch.float32 else 1e-14}
    assert iou([5, 6, 1, 1, 0], [5, 6, 1, 1, 45]) == pytest.approx(
        OCTAGON / (2 - OCTAGON), **tolerance
    )
    # Counter-clockwise with y pointing down: 30 degrees lift the far end of w to smaller y.
    direction = [20 * math.cos(math.pi / 6), -20 * math.sin(math.pi / 6)]
    assert iou([0, 0, 60, 2, 30], [*direction, 4, 1, 30]) == pytest.approx(4 / 120, rel=1e-6)
    assert iou([0, 0, 60, 2, -30], [*direction, 4, 1, -30]) == 0
    # Side by side, corner to corner, one within the other, and a cross.
    assert iou([0, 0, 10, 10, 0], [10, 0, 10, 10, 0]) == 0
    assert iou([0, 0, 10, 10, 90], [10, 10, 10, 10, -180]) == 0
    assert iou([0, 0, 10, 10, 0], [1, 2, 2, 4, 0]) == pytest.approx(8 / 100, **tolerance)
    assert iou([0, 0, 10, 2, 0], [0, 0, 10, 2, 90]) == pytest.approx(4 / 36, **tolerance)
    assert iou([0, 0, 10, 10, 0], [5, 0, 10, 10, 0]) == pytest.approx(1 / 3, **tolerance)


@pytest.mark.parametrize("offset", [0, 5e5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iou_of_box_with_itself_is_one(dtype, offset, device):
    sides = [[180.64, 136.36, 54.77], [900, 3, 33.3], [3, 900, -71], [1e-3, 1e-3, 10], [1, 1e6, 5]]
    boxes = torch.tensor([[offset, -offset, *s] for s in sides], dtype=dtype, device=device)
    ious = detops.box_iou_rotated(boxes, boxes).diagonal()
    torch.testing.assert_close(ious, torch.ones_like(ious), rtol=0, atol=1e-7)
    # The same box, rotated by 180 degrees or with its sides swapped.
    for rotated in (
        boxes + torch.tensor([0, 0, 0, 0, 180], dtype=dtype, device=device),
        boxes[:, [0, 1, 3, 2, 4]] + torch.tensor([0, 0, 0, 0, 90], dtype=dtype, device=device),
    ):
        ious = detops.box_iou_rotated(boxes, rotated).diagonal()
        torch.testing.assert_close(ious[:4], torch.ones_like(ious[:4]), rtol=0, atol=1e-3)


def test_translation_and_rotation_keep_iou():
    a, b = random_boxes(generator(4), 60, torch.float64), random_boxes(generator(5), 60)
    a, b = a.round(decimals=2), b.double().round(decimals=2)
    expected = detops.box_iou_rotated(a, b)
    shift = torch.tensor([5e5, -5e5, 0, 0, 0], dtype=torch.float64)
    translated = detops.box_iou_rotated(a + shift, b + shift)
    torch.testing.assert_close(translated, expected, rtol=1e-9, atol=1e-9)
    for quarters in range(1, 5):
        # Rotates the image by 90 degrees at a time: (x, y) to (y, -x).
        a, b = (torch.stack([x[:, 1], -x[:, 0], x[:, 2], x[:, 3], x[:, 4] + 90], 1) for x in (a, b))
        rotated = detops.box_iou_rotated(a, b)
        torch.testing.assert_close(rotated, expected, rtol=1e-12, atol=1e-12)
        with_full_turn = detops.box_iou_rotated(a, b + torch.tensor([0.0, 0, 0, 0, 360]))
        torch.testing.assert_close(with_full_turn, rotated, rtol=1e-12, atol=1e-12), quarters


def test_upright_boxes_match_box_iou():
    boxes = random_boxes(generator(6), 80, torch.float64)
    boxes[:, 4] = 0
    upright = detops.box_convert(boxes[:, :4], "cxcywh", "xyxy")
    torch.testing.assert_close(
        detops.box_iou_rotated(boxes, boxes), detops.box_iou(upright, upright)
    )


SIZES = st.floats(2**-40, width=32, allow_infinity=False)
COORDINATES = st.floats(width=32, allow_infinity=False, allow_nan=False)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(COORDINATES, COORDINATES, SIZES, SIZES, COORDINATES), min_size=1, max_size=20
    )
)
def test_iou_of_any_box_with_itself_is_one(rows):
    boxes = torch.tensor(rows, dtype=torch.float32)
    for x in (boxes, boxes.double()):
        assert (detops.box_iou_rotated(x, x).diagonal() > 0.999).all()


def test_prefilter_keeps_pairs_beyond_float32_range(isa):
    """Areas and distances leave the range of float32."""
    for scale in (1e-30, 1e-20, 1e-10, 1e15, 1e25, 1e35):
        boxes = random_boxes(generator(7), 40, torch.float64)
        expected = detops.box_iou_rotated(boxes, boxes)
        boxes[:, :4] *= scale
        scaled = detops.box_iou_rotated(boxes, boxes)
        torch.testing.assert_close(scaled, expected, rtol=1e-12, atol=1e-12)
