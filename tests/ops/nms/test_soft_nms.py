import math

import numpy as np
import pytest
import reference
import reference_mmcv
import torch
from torch._subclasses import FakeTensorMode

import detops
from detops.compat.mmcv_soft_nms import softnms


def test_soft_nms_matches_hand_computed_scores(device):
    boxes = torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1], [8, 8, 9, 9], [1, 0, 3, 1]], device=device)
    scores = torch.tensor([0.9, 0.6, 0.5, 0.3], device=device)
    third = torch.tensor(1 / 3)

    def result(*args):
        keep, kept = detops.soft_nms(boxes, scores, *args)
        return keep.tolist(), pytest.approx(kept.tolist(), rel=1e-6)

    keep, kept = result(0.3)
    assert keep == [0, 2, 1]  # box 1 decays from 0.6 to 0.4, below box 2; box 3 decays to 0
    assert [0.9, 0.5, 0.6 * (1 - third)] == kept
    keep, kept = result(0.4)
    assert keep == [0, 1, 2] and [0.9, 0.6, 0.5] == kept
    keep, kept = result(0.3, 0.5, 1e-3, "gaussian")
    weight, gaussian = math.exp(-(third**2) / 0.5), math.exp(-2)
    assert keep == [0, 2, 1, 3] if 0.6 * weight < 0.5 else keep == [0, 1, 2, 3]
    assert sorted([0.9, 0.5, 0.6 * weight, 0.3 * weight * gaussian], reverse=True) == kept
    keep, kept = result(0.3, 0.5, 0.6)
    assert keep == [0] and [0.9] == kept


@pytest.mark.parametrize("method", ["linear", "gaussian", "naive"])
def test_infinite_min_score_keeps_only_infinite_scores(method, device):
    boxes = reference.random_boxes(12).to(device)
    scores = torch.linspace(0.1, 0.9, 12, device=device)
    scores[5], scores[6], scores[7] = math.nan, math.inf, -math.inf
    keep, _ = detops.soft_nms(boxes, scores, min_score=math.inf, method=method)
    assert keep.tolist() == [6]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma": 0.0}, "sigma must be positive and finite, got 0"),
        ({"sigma": -1.0}, "sigma must be positive and finite, got -1"),
        ({"sigma": math.nan}, "sigma must be positive and finite"),
        ({"min_score": math.nan}, "min_score must be a number, got nan"),
        ({"method": "hard"}, "method must be linear, gaussian or naive, got hard"),
    ],
)
def test_soft_nms_rejects_bad_options(options, message):
    boxes, scores = torch.rand(3, 4), torch.rand(3)
    with pytest.raises(RuntimeError, match=f"detops.soft_nms: {message}"):
        detops.soft_nms(boxes, scores, **options)
    with FakeTensorMode(), pytest.raises(RuntimeError, match=f"detops.soft_nms: {message}"):
        detops.soft_nms(torch.empty(3, 4), torch.empty(3), **options)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("method", ["naive", "linear", "gaussian"])
@pytest.mark.parametrize(
    "malformed", ["points", "inverted", "infinite", "NaN first", "NaN last", "all NaN"]
)
def test_mmcv_soft_nms_keeps_nan_scores(malformed, method, ties):
    """Comparisons with NaN are false: a NaN score is neither below the minimum nor exceeded."""
    torch.manual_seed(0)
    boxes, scores = reference.random_boxes(12), torch.rand(12)
    if ties:
        scores = (scores * 3).round() / 3
    if malformed == "points":
        boxes[3:6] = 5.0
    elif malformed == "inverted":
        boxes[4] = boxes[4, [2, 1, 0, 3]]
    elif malformed == "infinite":
        boxes[[2, 7], 2:] = torch.inf
    else:
        scores[{"NaN first": 0, "NaN last": 11, "all NaN": slice(None)}[malformed]] = torch.nan
    dets = boxes.new_zeros(12, 5)
    number = ("naive", "linear", "gaussian").index(method)
    keep = softnms(boxes, scores, dets, 0.3, 0.5, 0.05, number, 0)
    with np.errstate(all="ignore"):
        expected, values = reference_mmcv.soft_nms(
            boxes.numpy(), scores.numpy(), 0.3, 0.5, 0.05, method
        )
    assert torch.equal(keep, expected)
    torch.testing.assert_close(dets[: len(keep), 4], values, equal_nan=True)
