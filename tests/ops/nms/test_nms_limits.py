"""``max_output`` and ``score_threshold`` where NMS stops early in an index or on threads."""

import numpy as np
import pytest
import torch
from nms_inputs import dense_case, sparse_case

import detops


@pytest.mark.parametrize("threshold", [0.001, 0.3])
@pytest.mark.parametrize("kind", ["uniform", "sizes", "broken", "disjoint", "nested"])
def test_limits_hold_when_nms_uses_an_index(kind, threshold, isa):
    """Keeps so many boxes that NMS uses an index, for each kind of index."""
    case = dense_case if kind in ("disjoint", "nested") else sparse_case
    boxes, scores = case(np.random.default_rng(1), kind, 4000)
    for dtype in (torch.float32, torch.float64):
        tensors = boxes.to(dtype), scores.to(dtype)
        all_kept = detops.nms(*tensors, threshold)
        above = (tensors[1].double() > 0.25).nonzero()[:, 0]
        all_kept_above = above[detops.nms(*(t[above] for t in tensors), threshold)]
        for limit in (5, len(all_kept) // 2, len(all_kept) - 1, len(all_kept), len(all_kept) + 1):
            found = detops.nms(*tensors, threshold, max_output=limit)
            assert torch.equal(found, all_kept[:limit]), limit
            found = detops.nms(*tensors, threshold, score_threshold=0.25, max_output=limit)
            assert torch.equal(found, all_kept_above[:limit]), limit


def test_limits_hold_for_many_boxes_and_any_thread_count(two_threads):
    boxes, scores = sparse_case(np.random.default_rng(2), "uniform", 40_000)
    boxes, scores = boxes.float(), scores.float()
    labels = torch.arange(len(boxes)) // 35_000
    for name, tensors in (("nms", (boxes, scores)), ("batched_nms", (boxes, scores, labels))):
        function = getattr(detops, name)
        all_kept = function(*tensors, 0.5)
        for limit in (10, 2000, 3000, 39_000):
            for found in two_threads(lambda: function(*tensors, 0.5, max_output=limit)):  # noqa: B023
                assert torch.equal(found, all_kept[:limit]), (name, limit)
    for limit in (10, 2000, 3000, 39_000):
        keep, count = detops.nms_padded(boxes, scores, 0.5, limit)
        assert torch.equal(keep[:count], detops.nms(boxes, scores, 0.5, max_output=limit))
