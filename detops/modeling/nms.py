"""Non-maximum suppression with a limit on the number of boxes."""

import torch
from torch import Tensor

from ..ops import batched_nms
from .symbolic import exporting, sym_min


def limited_nms(
    boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float, limit: int = 0
) -> Tensor:
    """Returns the indices of the boxes that :func:`detops.batched_nms` keeps.

    If ``threshold`` <= 0, no box is suppressed.

    Args:
        boxes: ``[N, 4]``.
        scores: ``[N]``.
        labels: int64 ``[N]``; boxes of different labels do not suppress each other.
        threshold: IoU above which the lower-scoring of two boxes is removed.
        limit: maximum number of boxes; 0 means no limit, as in maskrcnn-benchmark.

    Returns:
        int64 ``[K]``, best first.
    """
    if threshold <= 0:
        keep = scores.argsort(descending=True, stable=True)
    else:
        keep = batched_nms(boxes, scores, labels, threshold)
    return first_rows(keep, limit) if limit > 0 else keep


def first_rows(rows: Tensor, limit: int) -> Tensor:
    """Returns the first ``limit`` rows."""
    if exporting():  # slicing would compare the end with a symbolic size
        return rows[torch.arange(sym_min(limit, rows.size(0)), device=rows.device)]
    return rows[:limit]
