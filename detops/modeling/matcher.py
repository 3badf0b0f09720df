"""Assigns ground truth to boxes."""

from torch import Tensor

from .. import ops

BACKGROUND = -1
IGNORED = -2

# Ground truths whose IoUs with all boxes are in memory at a time.
CHUNK = 8


class Matcher:
    """Matches boxes to ground truth: "Faster R-CNN" (Ren et al., 2015), section 3.1.2.

    The matrix of all IoUs is never allocated: with 250,000 anchors and 1,000 ground truths it
    would take 1 GB.

    Args:
        high: a box with an IoU of at least this is matched.
        low: a box with a lower IoU is background; between ``low`` and ``high`` it is ignored.
        allow_low_quality_matches: also match each box that has the highest IoU with some ground
            truth, however low. It is matched to its own best ground truth.
    """

    def __init__(self, high: float, low: float, allow_low_quality_matches: bool = False) -> None:
        if not 0 <= low <= high:
            raise ValueError(f"Matcher: expected 0 <= low <= high, got low {low}, high {high}")
        self.high, self.low = high, low
        self.allow_low_quality_matches = allow_low_quality_matches

    def __call__(self, truth: Tensor, boxes: Tensor) -> Tensor:
        """Matches boxes ``[N, 4]`` to ``truth`` ``[G, 4]``.

        The result ``[N]`` holds indices of ground truths, -1 for background, -2 for ignored boxes.
        """
        best, match = ops.match_boxes(boxes, truth)
        result = match.clone()
        result[best < self.high] = IGNORED
        result[best < self.low] = BACKGROUND
        if truth.size(0) == 0:
            return result.fill_(BACKGROUND)
        if self.allow_low_quality_matches and boxes.size(0):
            top, _ = ops.match_boxes(truth, boxes)
            # A ground truth that overlaps no box would match every box, at an IoU of 0.
            truth, top = truth[top > 0], top[top > 0]
            for chunk, chunk_top in zip(truth.split(CHUNK), top.split(CHUNK), strict=True):
                is_best = (ops.box_iou(chunk, boxes) == chunk_top[:, None]).any(dim=0)
                result[is_best] = match[is_best]
        return result
