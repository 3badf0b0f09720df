import math

import pytest
import torch
from torch._subclasses import FakeTensorMode

import detops


def test_matrix_nms_matches_hand_computed_scores(device):
    # IoU is 1/3 between neighbours of this row and 0 otherwise.
    boxes = torch.tensor(
        [[0.0, 0, 2, 1], [1, 0, 3, 1], [2, 0, 4, 1], [9, 9, 10, 10]], device=device
    )
    scores = torch.tensor([0.9, 0.8, 0.7, 0.1], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, method="linear")
    # Box 1 leaves box 2 unchanged, because box 0 decays box 1 equally: (1 - 1/3) / (1 - 1/3).
    assert keep.tolist() == [0, 2, 1, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.7, 0.8 * 2 / 3, 0.1], rel=1e-6)
    keep, kept = detops.matrix_nms(boxes, scores, sigma=3.0)
    assert keep.tolist() == [0, 2, 1, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.7, 0.8 * math.exp(-3 / 9), 0.1], rel=1e-6)
    labels = torch.tensor([5, 6, 5, 5], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, labels)
    assert keep.tolist() == [0, 1, 2, 3] and torch.equal(kept, scores)


def test_only_first_of_equal_boxes_decays_others(device):
    """The ratio between the other equal boxes is 0/0 and decays no score."""
    boxes = torch.tensor([[0.0, 0, 2, 1]] * 4 + [[1.0, 0, 3, 1]], device=device)
    scores = torch.tensor([0.9, 0.8, 0.8, 0.7, 0.6], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, min_score=0.0, method="linear")
    assert keep.tolist() == [0, 4, 1, 2, 3]
    assert kept.tolist() == pytest.approx([0.9, 0.4, 0, 0, 0], rel=1e-6)
    keep, kept = detops.matrix_nms(boxes, scores)
    assert kept[1:].tolist() == pytest.approx(
        [0.6 * math.exp(-2 / 9), *(s * math.exp(-2) for s in (0.8, 0.8, 0.7))], rel=1e-6
    )


@pytest.mark.parametrize("method", ["gaussian", "linear"])
def test_box_with_nan_score_decays_no_scores(method, device):
    boxes = torch.tensor([[0.0, 0, 2, 1], [5, 5, 7, 6], [-10, -10, 20, 20]], device=device)
    scores = torch.tensor([0.9, 0.8, math.nan], device=device)
    keep, kept = detops.matrix_nms(boxes, scores, method=method)
    assert keep.tolist() == [0, 1] and torch.equal(kept, scores[:2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idxs": torch.rand(3)}, "idxs must be integers or bool, got float32"),
        ({"sigma": 0.0}, "sigma must be positive and finite, got 0"),
        ({"sigma": math.inf}, "sigma must be positive and finite"),
        ({"min_score": math.nan}, "min_score must be a number, got"),
        ({"method": "naive"}, "method must be linear or gaussian, got naive"),
    ],
)
def test_matrix_nms_rejects_bad_options(options, message):
    boxes, scores = torch.rand(3, 4), torch.rand(3)
    with pytest.raises(RuntimeError, match=f"detops.matrix_nms: {message}"):
        detops.matrix_nms(boxes, scores, **options)
    if "idxs" in options:
        return
    with FakeTensorMode(), pytest.raises(RuntimeError, match=f"detops.matrix_nms: {message}"):
        detops.matrix_nms(torch.empty(3, 4), torch.empty(3), **options)
