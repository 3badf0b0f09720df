"""What stays of overlapping boxes."""

import torch
from torch import Tensor

from ..ops import batched_nms
from .symbolic import exporting, smaller


def thin(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float, most: int = 0) -> Tensor:
    """Indices of the boxes that :func:`detops.batched_nms` keeps; of all if ``threshold`` <= 0.

    Args:
        boxes: ``[N, 4]``.
        scores: ``[N]``.
        labels: int64 ``[N]``; boxes of different labels do not meet.
        threshold: IoU above which the worse of two boxes falls.
        most: how many stay at most, as maskrcnn-benchmark counts: no limit if it is 0.

    Returns:
        int64 ``[K]``, best first.
    """
    if threshold <= 0:
        keep = scores.argsort(descending=True, stable=True)
    else:
        keep = batched_nms(boxes, scores, labels, threshold)
    return first(keep, most) if most > 0 else keep


def first(rows: Tensor, limit: int) -> Tensor:
    """The first ``limit`` rows."""
    if exporting():  # a slice's end would be compared with a size that nobody knows
        return rows[torch.arange(smaller(limit, rows.size(0)), device=rows.device)]
    return rows[:limit]
