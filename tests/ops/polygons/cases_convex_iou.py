"""The overlaps of hulls of point sets with quadrilaterals."""

import torch
from overlap import Overlap
from overlap_inputs import POINT_SETS
from reference_polygons import convex_giou, convex_iou

import detops

CLOSE = {torch.float32: (1e-6, 1e-6), torch.float64: (1e-11, 1e-11)}


def for_pair(oracle):
    return lambda a, b: oracle(a[None], b[None]).item()


CASES = [
    Overlap(
        "convex_iou",
        "convex_iou",
        detops.convex_iou,
        for_pair(convex_iou),
        POINT_SETS,
        CLOSE,
        symmetric=None,
        same_bits=True,
        differentiable=(),
    ),
    Overlap(
        "convex_giou",
        "convex_giou",
        detops.convex_giou,
        for_pair(convex_giou),
        POINT_SETS,
        CLOSE,
        aligned=True,
        symmetric=None,
        same_bits=True,
        degenerate_value=None,
        nonfinite_value=torch.nan,
        differentiable=(0,),
        exceptions={"aligned_arguments_accept_leading_dimensions": "its arguments are matrices"},
    ),
]
