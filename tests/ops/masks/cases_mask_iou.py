"""The overlaps of masks."""

from functools import partial

import torch
from overlap import Overlap
from overlap_inputs import MASKS
from reference_masks import mask_iou

import detops


def oracle(a, b, mode):
    return mask_iou(a[None], b[None], mode).item()


CASES = [
    Overlap(
        f"mask_iou {mode}",
        "mask_iou",
        partial(detops.mask_iou, mode=mode),
        partial(oracle, mode=mode),
        MASKS,
        {torch.float32: (0, 0)},
        symmetric=mode == "iou",
        same_bits=True,
        differentiable=(),
    )
    for mode in ("iou", "iof")
]
