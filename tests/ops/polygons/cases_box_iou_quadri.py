"""The overlaps of quadrilaterals, as a matrix and aligned."""

from functools import partial

import torch
from overlap import Overlap
from overlap_inputs import QUADS
from reference_polygons import quad_iou

import detops


def case(mode, aligned):
    op = partial(detops.box_iou_quadri, mode=mode)
    return Overlap(
        f"box_iou_quadri {mode}{' aligned' * aligned}",
        "box_iou_quadri",
        partial(op, aligned=aligned),
        partial(quad_iou, mode=mode),
        QUADS,
        {torch.float32: (1e-6, 1e-6), torch.float64: (1e-11, 1e-11)},
        aligned,
        matrix=op if aligned else None,
        symmetric=mode == "iou",
        same_bits=True,
        differentiable=(),
    )


CASES = [case(mode, aligned) for mode in ("iou", "iof") for aligned in (False, True)]
