"""The overlaps of rotated boxes without a derivative."""

from functools import partial

import torch
from overlap import Overlap
from overlap_inputs import ROTATED
from reference_rotated import iou

import detops


def oracle(a, b, mode):
    return iou(a.tolist(), b.tolist(), mode)


CASES = [
    Overlap(
        f"box_iou_rotated {mode}",
        "box_iou_rotated",
        partial(detops.box_iou_rotated, mode=mode),
        partial(oracle, mode=mode),
        ROTATED,
        {torch.float32: (1e-7, 1e-7), torch.float64: (1e-12, 1e-12)},
        symmetric=mode == "iou",
        same_bits=True,
        differentiable=(),
    )
    for mode in ("iou", "iof")
]
