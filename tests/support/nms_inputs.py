"""Boxes for the tests of suppression ops: one kind per part of the kernels."""

import math
from functools import lru_cache, partial

import numpy as np
import torch

LOW_THRESHOLDS = [0.0, 1e-45, 1e-40, 1e-30, 1e-10, 1e-3, 0.01, 0.02, 0.0200001]
THRESHOLDS = [-0.1, *LOW_THRESHOLDS, 0.2, 0.3, 1 / 3, 0.5, 0.6, 0.7, 0.999, 1.0, 1.5, math.inf]
EXTREME_VALUES = [math.nan, math.inf, -math.inf, 1e30, -1e30, 1e-30, 0.0]
# Oracles that clip round differently: no IoU of their inputs is as close as 1e-9 to one of these.
CLIPPED_THRESHOLDS = (-0.1, 0.013, 0.21, 0.47, 0.71, 0.93, 1.5, math.inf)
SPARSE_KINDS = [
    "uniform",
    "sizes",
    "thin",
    "outliers",
    "near copies",
    "far from the origin",
    "integers",
]
DENSE_KINDS = ["disjoint", "touching", "overlapping by a hair", "ladder", "crosses", "nested"]


def mixed_boxes(rng, kind, count):
    """Returns boxes that are smooth, gridded, near copies, broken or inverted."""
    low = rng.uniform(-20, 80, (count, 2))
    side = rng.uniform(-10 if kind == "inverted" else 0, 40, (count, 2))
    boxes = np.concatenate([low, low + side], 1)
    if kind == "gridded":  # IoU meets the threshold exactly
        boxes = np.round(boxes / 5) * 5
    if kind == "near copies":
        boxes = boxes[rng.integers(0, max(1, count // 10), count)] + rng.normal(0, 0.5, (count, 4))
    if kind in ("broken", "inverted") and count:
        for _ in range(max(1, count // 8)):
            boxes[rng.integers(count), rng.integers(4)] = rng.choice(EXTREME_VALUES)
    return torch.from_numpy(boxes)


MIXED_KINDS = ["smooth", "gridded", "near copies", "broken", "inverted"]


def mixed_case(rng, count, dtype=torch.float32):
    """Returns boxes and scores of a random kind."""
    kind = MIXED_KINDS[rng.integers(5)]
    boxes, scores = mixed_boxes(rng, kind, count), rng.random(count)
    if rng.random() < 0.5:
        scores = np.round(scores * 10) / 10
    if kind in ("broken", "inverted") and count:
        for _ in range(max(1, count // 8)):
            scores[rng.integers(count)] = rng.choice([math.nan, math.inf, -math.inf, 0.0, -0.0])
    return boxes.to(dtype), torch.from_numpy(scores).to(dtype)


def sparse_case(rng, kind, count):
    """Returns boxes that NMS mostly keeps, so that it uses the grid: one kind per part of it."""
    centre = rng.uniform(0, 1500, (count, 2))
    side = rng.uniform(10, 60, (count, 2))
    if kind == "sizes":  # every size class from points to the whole image
        side = np.exp(rng.uniform(-5, 7, (count, 1))) * np.exp(rng.normal(0, 0.3, (count, 2)))
    elif kind == "thin":
        stretch = np.exp(rng.normal(0, 2, (count, 1)))
        side = side * np.concatenate([stretch, 1 / stretch], 1)
    elif kind == "outliers":
        is_far = rng.random(count) < 0.1
        centre[is_far] += rng.choice([-1e7, 1e5, 1e7, 1e18], (int(is_far.sum()), 1))
    elif kind == "near copies":
        source = rng.integers(0, count // 2, count)
        centre = centre[source] + rng.normal(0, 3, (count, 2))
        side = side[source] * np.exp(rng.normal(0, 0.1, (count, 2)))
    elif kind == "far from the origin":
        centre = centre * 0.01 + 30000
        side = np.exp(rng.uniform(-6, 0, (count, 2)))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], 1)
    if kind == "integers":  # IoU meets the threshold exactly
        boxes = np.round(boxes / 8) * 8
    if kind == "broken":
        inverted = rng.random(count) < 0.6
        boxes[inverted] = boxes[inverted][:, [2, 3, 0, 1]]
        for value in [*EXTREME_VALUES, -1e4, 1e4]:
            boxes[rng.integers(0, count, count // 40), rng.integers(0, 4, count // 40)] = value
    return torch.from_numpy(boxes), torch.from_numpy(rng.permutation(count) / count)


def dense_case(rng, kind, count):
    """Returns boxes that the index for low thresholds must separate: one kind per part of it."""
    index = np.arange(count)
    corner = np.stack([index % 40, index // 40], 1) * 10.0
    if kind == "disjoint":
        boxes = np.concatenate([corner, corner + 8], 1)
    elif kind == "touching":  # table cells, which share edges but no area
        boxes = np.concatenate([corner, corner + 10], 1)
    elif kind == "overlapping by a hair":
        boxes = np.concatenate([corner, corner + 10 + 1e-4], 1)
    elif kind == "ladder":
        low = index[:, None] * np.array([99.0, 0.0])
        boxes = np.concatenate([low, low + 100], 1)
    elif kind == "crosses":  # lines that cross within a pixel
        line = np.stack([index * 0, index, index * 0 + count, index + 0.5], 1).astype(float)
        boxes = np.where(rng.random((count, 1)) < 0.5, line, line[:, [1, 0, 3, 2]])
    elif kind == "nested":
        half = 1.01 ** -(index % 4000)[:, None] * 1e6
        boxes = np.concatenate([-half, -half, half, half], 1)
    elif kind == "identical":
        boxes = np.tile([[3.0, 4, 50, 60]], (count, 1))
    elif kind == "one huge box":
        boxes = np.concatenate([corner, corner + 8], 1)
        boxes[count // 2] = [-1e4, -1e4, 1e4, 1e4]
    else:  # products and quotients of areas that leave the range of float32
        side = 10.0 ** rng.uniform(-15, 15, (count, 2))
        low = rng.normal(0, 1, (count, 2)) * 10.0 ** rng.uniform(-20, 14, (count, 1))
        boxes = np.concatenate([low, low + side], 1)
    return torch.from_numpy(boxes), torch.from_numpy(rng.permutation(count) / count)


def clustered_boxes(rng, count):
    """Returns boxes around a few positions, so that each overlaps several; some are integers."""
    cluster_centres = rng.uniform(0, 200, (max(1, count // 8), 2))
    centre = cluster_centres[rng.integers(0, len(cluster_centres), count)] + rng.normal(
        0, 6, (count, 2)
    )
    side = rng.uniform(10, 40, (count, 2))
    boxes = np.concatenate([centre - side / 2, centre + side / 2], 1)
    return torch.from_numpy(np.round(boxes) if rng.random() < 0.5 else boxes)


def box_kinds(random_boxes, kinds, extreme_values):
    """Returns a function per kind of boxes, and one for the first kind with odd numbers."""

    def make(rng, count, kind, is_broken):
        generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
        boxes = random_boxes(generator, count, kind=kind)
        if is_broken and count:
            for _ in range(1 + count // 8):
                boxes[rng.integers(count), rng.integers(boxes.size(1))] = rng.choice(extreme_values)
        return boxes

    valid = {kind: partial(make, kind=kind, is_broken=False) for kind in kinds}
    return valid | {"broken": partial(make, kind=kinds[0], is_broken=True)}


def clipped(overlaps):
    """Returns the IoU of boxes with one another, clipped in float64, in the dtype of the boxes."""

    @lru_cache(maxsize=200)  # by identity: the random inputs are cached as well
    def rounded(boxes):
        iou = overlaps(boxes, boxes)
        assert not any(((iou - t).abs() < 1e-9).any() for t in CLIPPED_THRESHOLDS)
        return iou.to(boxes.dtype).double()

    return rounded
