"""Assigns ground truth to boxes."""

import torch
from torch import Tensor

BELOW_LOW = -1
BETWEEN = -2


class Matcher:
    """The assignment of "Faster R-CNN" (Ren et al., 2015), section 3.1.2.

    Args:
        high: a box with an IoU of at least this is matched.
        low: a box with less than this is background; between the two it is left out.
        allow_low_quality_matches: a box that is the best there is for some ground truth is
            matched, to its own best, however low its IoU.
    """

    def __init__(self, high: float, low: float, allow_low_quality_matches: bool = False) -> None:
        if not 0 <= low <= high:
            raise ValueError(f"Matcher: expected 0 <= low <= high, got low {low}, high {high}")
        self.high, self.low = high, low
        self.allow_low_quality_matches = allow_low_quality_matches

    def __call__(self, iou: Tensor) -> Tensor:
        """``[G, N]`` to int64 ``[N]``: index of the ground truth, -1 background, -2 left out."""
        if iou.size(0) == 0:
            return iou.new_full((iou.size(1),), BELOW_LOW, dtype=torch.int64)
        best, match = iou.max(dim=0)
        result = match.clone()
        result[best < self.high] = BETWEEN
        result[best < self.low] = BELOW_LOW
        if self.allow_low_quality_matches and iou.size(1):
            top = iou.amax(dim=1, keepdim=True)
            # A ground truth that meets no box at all is not everyone's best match.
            best_for_some = ((iou == top) & (top > 0)).any(dim=0)
            result[best_for_some] = match[best_for_some]
        return result
