"""The differentiable overlaps of matched rotated boxes, and losses from them."""

from functools import partial

import torch
from cases_box_iou_rotated import oracle
from overlap import Overlap
from overlap_inputs import ROTATED
from reference_overlaps import rotated_loss

import detops

NO_DERIVATIVE = {
    "aligned_gradient_is_the_gradient_of_the_diagonal": "box_iou_rotated has no derivative"
}


def oracle_of_loss(a, b, mode):
    return rotated_loss(a.tolist(), b.tolist(), mode)


def overlap(mode, op):
    return Overlap(
        f"{op} {mode}{' aligned' * (op == 'box_iou_rotated')}",
        "rotated_iou",
        partial(getattr(detops, op), mode=mode, **{"aligned": True} if op != "rotated_iou" else {}),
        partial(oracle, mode=mode),
        ROTATED,
        {torch.float32: (1e-7, 1e-7), torch.float64: (1e-12, 1e-12)},
        aligned=True,
        matrix=partial(detops.box_iou_rotated, mode=mode),
        symmetric=mode == "iou",
        same_bits=True,
        exceptions=NO_DERIVATIVE,
    )


def loss(mode):
    exceptions = {}
    if mode != "iou":
        reason = "PyTorch ops compute the enclosing box"
        for test in (
            "extreme_values_give_finite_results",
            "huge_and_tiny_elements_give_finite_results",
            "nonfinite_second_elements_give_defined_results",
            "gradient_is_rounded_to_the_dtype_of_its_argument",
            "nonfinite_values_give_a_defined_gradient",
        ):
            exceptions[test] = reason
    if mode == "giou":
        reason = "the upright enclosing box is larger than the box"
        exceptions["overlap_of_a_box_with_itself_is_one"] = reason
    if mode == "diou":
        reason = "an infinite side gives 1, another infinity NaN"
        exceptions["nonfinite_values_give_a_defined_overlap"] = reason
    return Overlap(
        f"rotated_iou_loss {mode}",
        "rotated_iou_loss",
        partial(detops.rotated_iou_loss, mode=mode),
        partial(oracle_of_loss, mode=mode),
        ROTATED,
        {torch.float32: (1e-6, 1e-6), torch.float64: (1e-12, 1e-12)},
        aligned=True,
        self_value=0.0,
        degenerate_value=1.0 if mode == "iou" else None,
        nonfinite_value=1.0 if mode == "iou" else torch.nan,
        exceptions=exceptions,
    )


CASES = [
    *(overlap(mode, op) for op in ("rotated_iou", "box_iou_rotated") for mode in ("iou", "iof")),
    *(loss(mode) for mode in ("iou", "giou", "diou")),
]
