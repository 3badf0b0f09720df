"""What stays of overlapping boxes; limits of 0 are none, as maskrcnn-benchmark has them."""

from torch import Tensor

from ..ops import batched_nms


def thin(boxes: Tensor, scores: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Indices of the boxes that :func:`detops.batched_nms` keeps; of all if ``threshold`` <= 0.

    Args:
        boxes: ``[N, 4]``.
        scores: ``[N]``.
        labels: int64 ``[N]``; boxes of different labels do not meet.
        threshold: IoU above which the worse of two boxes falls.

    Returns:
        int64 ``[K]``, best first.
    """
    if threshold <= 0:
        return scores.argsort(descending=True, stable=True)
    return batched_nms(boxes, scores, labels, threshold)


def first(rows: Tensor, limit: int) -> Tensor:
    """The first ``limit`` rows; all if it is 0."""
    return rows[:limit] if limit > 0 else rows
