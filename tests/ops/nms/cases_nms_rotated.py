import math
from functools import partial

import reference_rotated
import torch
from cases_nms import LIMITS, disjoint_boxes
from nms_inputs import CLIPPED_THRESHOLDS, box_kinds, clipped
from reference_rotated import KINDS
from suppression import Boxes, Suppression, call_op, greedy


def disjoint_rotated_boxes(count):
    low = disjoint_boxes(count)[:, :2]
    return torch.cat([low + 0.5, torch.tensor([[1.0, 1, 30]]).expand(count, 3)], 1)


ROTATED = Boxes(
    argument="boxes",
    shape="[N, 5]",
    kinds=box_kinds(
        partial(reference_rotated.random_boxes, dtype=torch.float64),
        (*KINDS, "one centre"),
        (math.nan, math.inf, -math.inf, 0.0, -1.0),
    ),
    disjoint=disjoint_rotated_boxes,
    pair_with_iou_third=torch.tensor([[0.0, 0, 2, 1, 0], [1, 0, 2, 1, 0]]),
    malformed=torch.tensor(
        [
            [math.nan, 0, 9, 9, 0],
            [20, 20, math.inf, 9, 30],
            [20, 20, 9, 9, math.nan],
            [20, 20, 0, 9, 30],
            [20, 20, 9, -9, 30],
        ]
    ),
    thresholds=CLIPPED_THRESHOLDS,
    counts=(0, 1, 2, 17, 40),
)


overlaps = clipped(reference_rotated.box_iou_rotated)
EXCEPTIONS = {
    "test_any_floats_match_the_oracle": "clipping in float64 overflows; see test_nms_rotated.py"
}
CASES = [
    Suppression(
        "nms_rotated",
        call_op("nms_rotated"),
        greedy(overlaps),
        ROTATED,
        limits=LIMITS,
        exceptions=EXCEPTIONS,
    ),
    Suppression(
        "batched_nms_rotated",
        call_op("batched_nms_rotated", labelled=True),
        greedy(overlaps, labelled=True),
        ROTATED,
        separates_labels=True,
        limits=LIMITS,
        exceptions=EXCEPTIONS,
    ),
]
