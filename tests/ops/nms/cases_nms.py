import functools
import math

import numpy as np
import reference
import torch
from nms_inputs import MIXED_KINDS, THRESHOLDS, dense_case, mixed_boxes
from suppression import Boxes, Suppression, call_op, greedy


def mixed(kind):
    return lambda rng, count: mixed_boxes(rng, kind, count)


def dense(kind):
    return lambda rng, count: dense_case(rng, kind, count)[0]


def disjoint_boxes(count):
    index = torch.arange(count)
    low = 2.0 * torch.stack([index % 64, index // 64], 1)
    return torch.cat([low, low + 1], 1)


ALIGNED = Boxes(
    argument="boxes",
    shape="[N, 4]",
    kinds={kind: mixed(kind) for kind in MIXED_KINDS}
    | {kind: dense(kind) for kind in ("touching", "crosses", "far apart in size")},
    disjoint=disjoint_boxes,
    pair_with_iou_third=torch.tensor([[0.0, 0, 2, 1], [1, 0, 3, 1]]),
    malformed=torch.tensor(
        [[math.nan, 0, 9, 9], [0, 0, math.inf, 9], [5, 5, 5, 5], [40, 30, 20, 10], [9, 0, 0, 9]]
    ),
    thresholds=tuple(THRESHOLDS),
)


@functools.lru_cache(maxsize=200)  # by identity: the random inputs are cached as well
def overlaps(boxes):
    dtype = np.float64 if boxes.dtype == torch.float64 else np.float32
    return torch.from_numpy(reference.iou_matrix(boxes, dtype)).double()


LIMITS = ("score_threshold", "max_output")
CASES = [
    Suppression("nms", call_op("nms"), greedy(overlaps), ALIGNED, limits=LIMITS),
    Suppression(
        "batched_nms",
        call_op("batched_nms", labelled=True),
        greedy(overlaps, labelled=True),
        ALIGNED,
        separates_labels=True,
        limits=LIMITS,
        parallel_count=9000,  # from 8192 boxes on, the threads split the labels
    ),
]
