"""The five overlaps of upright boxes, each as a matrix and aligned."""

from functools import partial

import reference
import torch
from overlap import Overlap
from overlap_inputs import BOXES
from reference_overlaps import box_overlap, trade_off

import detops

NAMES = {
    "iou": "box_iou",
    "iof": "box_iou",
    "giou": "generalized_box_iou",
    "diou": "distance_box_iou",
    "ciou": "complete_box_iou",
}


def oracle(a, b, kind, **options):
    a, b = a.tolist(), b.tolist()
    if kind in ("iou", "iof"):
        return reference.overlap(a, b, kind)
    return box_overlap(a, b, kind, **options)


def with_constant_factor(a, b):
    return partial(oracle, kind="ciou", alpha=trade_off(a.tolist(), b.tolist()))


def case(kind, aligned):
    op = getattr(detops, NAMES[kind])
    op = partial(op, mode="iof") if kind == "iof" else op
    has_range, is_ciou = kind in ("iou", "iof"), kind == "ciou"
    reason = "gradients overflow if boxes are thin, or inverted and huge"
    exceptions = {"extreme_values_give_finite_results": reason}
    if is_ciou:
        exceptions["overlap_passes_gradcheck"] = "the derivative treats a factor as constant"
        reason = "the two kernels compute arctangents differently"
        exceptions["aligned_overlap_is_the_diagonal_of_the_matrix"] = reason
    return Overlap(
        f"{NAMES[kind]}{' iof' * (kind == 'iof')}{' aligned' * aligned}",
        NAMES[kind],
        partial(op, aligned=aligned),
        partial(oracle, kind=kind),
        BOXES,
        {torch.float32: (1e-6, 1e-7), torch.float64: (1e-12, 1e-12)},
        aligned,
        matrix=op if aligned else None,
        symmetric=kind != "iof",
        degenerate_value=0.0 if has_range else None,
        nonfinite_value=None if is_ciou else 0.0,
        second_may_be_nonfinite=kind == "iof",
        with_fixed_factors=with_constant_factor if is_ciou else None,
        exceptions=exceptions,
    )


CASES = [case(kind, aligned) for kind in NAMES for aligned in (False, True)]
