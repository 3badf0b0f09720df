import torch
from cases_nms import ALIGNED, overlaps
from suppression import Suppression, call_op, greedy


def match(boxes, scores, labels, threshold):
    """Returns for each box the first selected box that suppresses it, or the box itself."""
    keep = greedy(overlaps)(boxes, scores, labels, threshold).tolist()
    is_suppressed = (overlaps(boxes) > threshold).tolist()
    return torch.tensor(
        [
            i if i in keep else next(k for k in keep if is_suppressed[k][i])
            for i in range(len(boxes))
        ],
        dtype=torch.int64,
    )


def kept(match):
    return (match == torch.arange(len(match), device=match.device)).nonzero()[:, 0]


CASES = [
    Suppression(
        "nms_match",
        call_op("nms_match"),
        match,
        ALIGNED,
        kept=kept,
        exceptions={
            "test_kept_boxes_are_ordered_by_score_with_nan_first": "matches are in input order",
        },
    )
]
