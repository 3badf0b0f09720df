"""The losses from overlaps of upright boxes."""

from functools import partial

import torch
from overlap import Overlap
from overlap_inputs import BOXES
from reference_overlaps import box_overlap, trade_off

import detops

NAMES = {
    "giou": "generalized_box_iou_loss",
    "diou": "distance_box_iou_loss",
    "ciou": "complete_box_iou_loss",
}


def oracle(a, b, kind, **options):
    return 1 - box_overlap(a.tolist(), b.tolist(), kind, loss=True, **options)


def with_constant_factor(a, b):
    alpha = trade_off(a.tolist(), b.tolist(), loss=True)
    return partial(oracle, kind="ciou", alpha=alpha)


def case(kind):
    is_ciou = kind == "ciou"
    exceptions = {}
    if is_ciou:
        exceptions["overlap_passes_gradcheck"] = "the derivative treats a factor as constant"
    return Overlap(
        NAMES[kind],
        NAMES[kind],
        getattr(detops, NAMES[kind]),
        partial(oracle, kind=kind),
        BOXES,
        {torch.float32: (2e-5, 1e-6), torch.float64: (1e-11, 1e-13)},
        aligned=True,
        self_value=0.0,
        degenerate_value=None,
        nonfinite_value=torch.nan,
        with_fixed_factors=with_constant_factor if is_ciou else None,
        exceptions=exceptions,
    )


CASES = [case(kind) for kind in NAMES]
