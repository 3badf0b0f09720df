import functools
import math

import reference_masks
import torch
from suppression import Boxes, Suppression, call_op, greedy


def rectangles(rng, count):
    """Returns rectangles of all sizes; the sides of some end at or beyond those of the image."""
    masks = torch.zeros(count, 20, 31, dtype=torch.bool)
    for mask in masks:
        y, x = rng.integers(-3, 18), rng.integers(-3, 28)
        mask[max(y, 0) : y + rng.integers(1, 20), max(x, 0) : x + rng.integers(1, 25)] = True
    return masks


def noise(rng, count):
    """Returns random pixels; some masks are empty, some full."""
    fraction = torch.from_numpy(rng.choice([0.0, 0.1, 0.5, 0.9, 1.0], (count, 1, 1)))
    return torch.from_numpy(rng.random((count, 20, 31))) < fraction


def one_pixel_each(count):
    side = math.isqrt(max(0, count - 1)) + 1
    return torch.eye(side * side, dtype=torch.bool)[:count].view(count, side, side)


MASKS = Boxes(
    argument="masks",
    shape="[N, H, W]",
    kinds={"rectangles": rectangles, "noise": noise},
    disjoint=one_pixel_each,
    pair_with_iou_third=torch.tensor([[[1, 1, 0]], [[0, 1, 1]]]).bool(),
    malformed=torch.zeros(2, 20, 31, dtype=torch.bool),  # empty masks
    thresholds=(-1.0, 0.0, 0.2, 0.5, 0.7, 1.0, math.inf),
    rounding=torch.float32,
)


@functools.lru_cache(maxsize=200)  # by identity: the random inputs are cached as well
def overlaps(masks):
    return reference_masks.mask_iou(masks, masks).double()


CASES = [Suppression("mask_nms", call_op("mask_nms"), greedy(overlaps), MASKS, parallel_count=600)]
