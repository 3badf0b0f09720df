import functools
import math

import reference_rotated
import torch
from cases_nms import LIMITS, in_a_grid
from reference_rotated import KINDS
from suppression import Boxes, Suppression, calling, greedy

ODD = (math.nan, math.inf, -math.inf, 0.0, -1.0)


def random_boxes(kind):
    def make(rng, count):
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        boxes = reference_rotated.random_boxes(
            generator, count, torch.float64, "mixed" if kind == "broken" else kind
        )
        if kind == "broken" and count:
            for _ in range(1 + count // 8):
                boxes[rng.integers(count), rng.integers(5)] = rng.choice(ODD)
        return boxes

    return make


def turned_in_a_grid(count):
    low = in_a_grid(count)[:, :2]
    return torch.cat([low + 0.5, torch.tensor([[1.0, 1, 30]]).expand(count, 3)], 1)


ROTATED = Boxes(
    argument="boxes",
    shape="[N, 5]",
    kinds={kind: random_boxes(kind) for kind in (*KINDS, "one centre", "broken")},
    apart=turned_in_a_grid,
    third=torch.tensor([[0.0, 0, 2, 1, 0], [1, 0, 2, 1, 0]]),
    malformed=torch.tensor(
        [
            [math.nan, 0, 9, 9, 0],
            [20, 20, math.inf, 9, 30],
            [20, 20, 9, 9, math.nan],
            [20, 20, 0, 9, 30],
            [20, 20, 9, -9, 30],
        ]
    ),
    # The oracle rounds differently: no IoU of these inputs is as close as 1e-9 to a threshold.
    thresholds=(-0.1, 0.013, 0.21, 0.47, 0.71, 0.93, 1.5, math.inf),
    counts=(0, 1, 2, 17, 40),
)


@functools.lru_cache(maxsize=200)  # by identity: the random inputs are cached as well
def overlaps(boxes):
    """Clips polygons in float64, and rounds the IoU to the dtype of the boxes."""
    iou = reference_rotated.box_iou_rotated(boxes, boxes)
    assert not any(((iou - t).abs() < 1e-9).any() for t in ROTATED.thresholds)
    return iou.to(boxes.dtype).double()


EXCEPTIONS = {
    "test_any_floats_match_the_oracle": "clipping in float64 overflows; see test_nms_rotated.py"
}
CASES = [
    Suppression(
        "nms_rotated",
        calling("nms_rotated"),
        greedy(overlaps),
        ROTATED,
        limits=LIMITS,
        exceptions=EXCEPTIONS,
    ),
    Suppression(
        "batched_nms_rotated",
        calling("batched_nms_rotated", labelled=True),
        greedy(overlaps, labelled=True),
        ROTATED,
        separates=True,
        limits=LIMITS,
        exceptions=EXCEPTIONS,
    ),
]
