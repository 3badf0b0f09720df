import functools
import math

import reference_polygons
import torch
from cases_nms import in_a_grid
from suppression import Boxes, Suppression, calling, greedy


def random_quads(kind):
    def make(rng, count):
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        boxes = reference_polygons.random_quads(
            generator, count, "convex" if kind == "broken" else kind
        )
        if kind == "broken" and count:
            for _ in range(1 + count // 8):
                value = rng.choice([math.nan, math.inf, -math.inf])
                boxes[rng.integers(count), rng.integers(8)] = value
        return boxes

    return make


def corners(boxes):
    """Converts (x1, y1, x2, y2) to four corners."""
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]]


QUADS = Boxes(
    argument="boxes",
    shape="[N, 8]",
    kinds={kind: random_quads(kind) for kind in ("convex", "concave", "any", "broken")},
    apart=lambda count: corners(in_a_grid(count)),
    third=corners(torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1]])),
    malformed=torch.tensor(
        [
            [math.nan, 0, 9, 0, 9, 9, 0, 9],
            [0, 0, 9, 0, 9, math.inf, 0, 9],
            [5, 5, 5, 5, 5, 5, 5, 5],
            [0, 0, 1, 1, 2, 2, 3, 3],
        ]
    ),
    # The oracle rounds differently: no IoU of these inputs is as close as 1e-9 to a threshold.
    thresholds=(-0.1, 0.013, 0.21, 0.47, 0.71, 0.93, 1.5, math.inf),
    counts=(0, 1, 2, 9, 30),
)


@functools.lru_cache(maxsize=200)  # by identity: the random inputs are cached as well
def overlaps(boxes):
    """Clips triangles in float64, and rounds the IoU to the dtype of the boxes."""
    iou = reference_polygons.box_iou_quadri(boxes, boxes)
    assert not any(((iou - t).abs() < 1e-9).any() for t in QUADS.thresholds)
    return iou.to(boxes.dtype).double()


CASES = [
    Suppression(
        "nms_quadri",
        calling("nms_quadri"),
        greedy(overlaps),
        QUADS,
        exceptions={"test_any_floats_match_the_oracle": "clipping in float64 overflows"},
    )
]
