import math

import reference_polygons
import torch
from cases_nms import disjoint_boxes
from nms_inputs import CLIPPED_THRESHOLDS, box_kinds, clipped
from suppression import Boxes, Suppression, call_op, greedy


def corners(boxes):
    """Converts (x1, y1, x2, y2) to four corners."""
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]


QUADS = Boxes(
    argument="boxes",
    shape="[N, 8]",
    kinds=box_kinds(
        reference_polygons.random_quads,
        ("convex", "concave", "any"),
        (math.nan, math.inf, -math.inf),
    ),
    disjoint=lambda count: corners(disjoint_boxes(count)),
    pair_with_iou_third=corners(torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1]])),
    malformed=torch.tensor(
        [
            [math.nan, 0, 9, 0, 9, 9, 0, 9],
            [0, 0, 9, 0, 9, math.inf, 0, 9],
            [5, 5, 5, 5, 5, 5, 5, 5],
            [0, 0, 1, 1, 2, 2, 3, 3],
        ]
    ),
    thresholds=CLIPPED_THRESHOLDS,
    counts=(0, 1, 2, 9, 30),
)


CASES = [
    Suppression(
        "nms_quadri",
        call_op("nms_quadri"),
        greedy(clipped(reference_polygons.box_iou_quadri)),
        QUADS,
        exceptions={"test_any_floats_match_the_oracle": "clipping in float64 overflows"},
    )
]
