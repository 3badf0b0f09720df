"""Non-maximum suppression."""

from torch import Tensor

from ..registration import dispatcher_op
from ._shared import as_labels

_nms = dispatcher_op("nms")
_batched_nms = dispatcher_op("batched_nms")
_nms_match = dispatcher_op("nms_match")
_nms_padded = dispatcher_op("nms_padded")


def nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor:
    """Keeps the highest-scoring boxes that do not overlap a better one too much.

    Boxes are visited by descending score (NaN first, as in ``torch.sort``), ties in input order. A
    box is suppressed if its IoU with a kept box is strictly greater than the threshold. The IoU is
    rounded to float32 (float64 for float64 boxes), and the threshold is not rounded but compared as
    a double. A NaN IoU (0/0, NaN or infinite boxes) suppresses nothing. The result is the same on
    every device, instruction set and number of threads.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
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
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [20, 0, 29, 9], [40, 0, 49, 9]])
        >>> scores = torch.tensor([0.9, 0.8, 0.7, 0.02])
        >>> nms(boxes, scores, 0.5)
        tensor([0, 2, 3])
        >>> nms(boxes, scores, 0.5, score_threshold=0.05)
        tensor([0, 2])
    """
    return _nms(boxes, scores, iou_threshold, score_threshold, max_output)


def batched_nms(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor,
    iou_threshold: float,
    score_threshold: float | None = None,
    max_output: int | None = None,
) -> Tensor:
    """Keeps the highest-scoring boxes within each class; see :func:`nms`.

    Labels are compared directly and coordinates are never shifted, so boxes of different classes
    never suppress each other, wherever they lie. Everything else is as in :func:`nms`.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        scores: ``[N]``.
        idxs: ``[N]``, the class of each box: any values, integer or floating.
        iou_threshold: overlap above which the lower-scoring box of a class is suppressed.
        score_threshold: as in :func:`nms`.
        max_output: maximum number of boxes to keep, over all classes.

    Returns:
        int64 ``[K]``: indices of the kept boxes of all classes, by descending score.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold, or a
            negative number of boxes.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [0, 0, 8, 9]])
        >>> scores, labels = torch.tensor([0.9, 0.8, 0.7]), torch.tensor([1, 2, 1])
        >>> batched_nms(boxes, scores, labels, 0.5)
        tensor([0, 1])
    """
    labels = as_labels(idxs)
    return _batched_nms(boxes, scores, labels, iou_threshold, score_threshold, max_output)


def nms_match(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Returns the kept box that suppresses each box.

    The suppression is that of :func:`nms`. If a suppressed box overlaps several kept boxes, the
    best of them counts. "Prime Sample Attention in Object Detection" (Cao et al., 2020), section
    3.3, ranks the samples within each of these groups. The op runs asynchronously.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring box is suppressed.

    Returns:
        int64 ``[N]``: for each box the index of the kept box that suppresses it, or its own if it
        is kept.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, or a NaN threshold.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [20, 0, 29, 9], [0, 0, 8, 9]])
        >>> match = nms_match(boxes, torch.tensor([0.8, 0.9, 0.7, 0.6]), 0.5)
        >>> match
        tensor([1, 1, 2, 1])
        >>> [(match == k).nonzero()[:, 0].tolist() for k in match.unique()]
        [[0, 1, 3], [2]]
    """
    return _nms_match(boxes, scores, iou_threshold)


def nms_padded(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float,
    max_output: int | None = None,
    idxs: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs :func:`nms`, or :func:`batched_nms` if labels are given, with an output of fixed size.

    The op runs asynchronously, so it can be captured in a CUDA graph and does not break a compiled
    graph.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring box is suppressed.
        max_output: M, the maximum number of boxes to keep; N by default.
        idxs: integer ``[N]``, the class of each box.

    Returns:
        int64 ``[M]``: indices of the kept boxes, by descending score, padded with -1; and int64
        ``[]``: the number of kept boxes.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold, or a
            negative size.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [20, 0, 29, 9]])
        >>> nms_padded(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5, max_output=4)
        (tensor([ 0,  2, -1, -1]), tensor(2))
    """
    if max_output is None:
        max_output = boxes.size(0) if isinstance(boxes, Tensor) and boxes.dim() > 0 else 0
    return _nms_padded(boxes, scores, idxs, iou_threshold, max_output)
