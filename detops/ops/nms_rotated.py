"""Non-maximum suppression of rotated boxes."""

from torch import Tensor

from ..registration import dispatcher_op
from ._shared import as_labels

_nms_rotated = dispatcher_op("nms_rotated")
_batched_nms_rotated = dispatcher_op("batched_nms_rotated")


def nms_rotated(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor:
    """Keeps the highest-scoring rotated boxes that do not overlap a better one too much.

    Boxes are visited by descending score (NaN first, as in ``torch.sort``), ties in input order. A
    box is suppressed if its IoU with a kept box is strictly greater than the threshold. The IoU is
    that of :func:`box_iou_rotated`, rounded to float32 (float64 for float64 boxes). An undefined
    IoU (0/0, NaN or infinite boxes) suppresses nothing. The result is the same on every device,
    instruction set and number of threads.

    Args:
        boxes: ``[N, 5]`` as (cx, cy, w, h, angle) in pixels and degrees, counter-clockwise as seen
            in an image whose y axis points down.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring box is suppressed.
        score_threshold: only boxes with a score above this are considered, and none with a score
            of NaN. All boxes by default.
        max_output: maximum number of boxes to keep, the best ones; all by default. The op stops
            when it has found them.

    Returns:
        int64 ``[K]``: indices of the kept boxes, by descending score.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold, or a
            negative number of boxes.

    Example:
        >>> boxes = torch.tensor([[9.0, 9, 8, 4, 0], [9, 9, 8, 4, 10], [9, 9, 8, 4, 90]])
        >>> scores = torch.tensor([0.9, 0.8, 0.7])
        >>> nms_rotated(boxes, scores, 0.5)
        tensor([0, 2])
    """
    return _nms_rotated(boxes, scores, iou_threshold, score_threshold, max_output)


def batched_nms_rotated(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor:
    """Keeps the highest-scoring rotated boxes within each class; see :func:`nms_rotated`.

    Labels are compared directly and coordinates are never shifted. Everything else is as in
    :func:`nms_rotated`.

    Args:
        boxes: ``[N, 5]`` as (cx, cy, w, h, angle) in pixels and degrees, counter-clockwise as seen
            in an image whose y axis points down.
        scores: ``[N]``.
        idxs: ``[N]``, the class of each box: any values, integer or floating.
        iou_threshold: overlap above which the lower-scoring box of a class is suppressed.
        score_threshold: as in :func:`nms_rotated`.
        max_output: maximum number of boxes to keep, over all classes.

    Returns:
        int64 ``[K]``: indices of the kept boxes of all classes, by descending score.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold, or a
            negative number of boxes.

    Example:
        >>> boxes = torch.tensor([[9.0, 9, 8, 4, 0], [9, 9, 8, 4, 10], [9, 9, 8, 4, 20]])
        >>> scores, labels = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 2, 1])
        >>> batched_nms_rotated(boxes, scores, labels, 0.5)
        tensor([0, 1])
    """
    labels = as_labels(idxs)
    return _batched_nms_rotated(boxes, scores, labels, iou_threshold, score_threshold, max_output)
