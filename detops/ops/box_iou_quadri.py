"""Overlap and non-maximum suppression of quadrilaterals."""

from torch import Tensor

from ..registration import dispatcher_op
from ._shared import undifferentiable

_pairwise = undifferentiable("box_iou_quadri")
_matched = undifferentiable("box_iou_quadri_pairs")
_nms_quadri = dispatcher_op("nms_quadri")


def box_iou_quadri(
    boxes1: Tensor, boxes2: Tensor, mode: str = "iou", aligned: bool = False
) -> Tensor:
    """Computes the intersection over union of all pairs of quadrilaterals.

    Corners may run in either direction, and quadrilaterals may be concave. If sides cross, the two
    triangles count with opposite signs. Overlaps are computed in float64, and have the same bits on
    every device and for either order of a pair. An undefined overlap (0/0, NaN or infinite
    coordinates) is 0. Not differentiable.

    Args:
        boxes1: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in pixels, in order.
        boxes2: ``[M, 8]``, likewise.
        mode: ``iou`` divides the intersection by the area of the union, ``iof`` (intersection over
            foreground) by the area of the box of ``boxes1``.
        aligned: compares each box of ``boxes1`` only with the one at the same position in
            ``boxes2``. Both then have the same shape, which may have more leading dimensions.

    Returns:
        ``[N, M]``, or ``[N]`` if aligned, in [0, 1]: float64 if one of the inputs is, otherwise
        float32.

    Raises:
        RuntimeError: wrong shape or dtype, an unknown mode, or devices that differ.

    Example:
        >>> square = torch.tensor([[0.0, 0, 4, 0, 4, 4, 0, 4]])
        >>> dart = torch.tensor([[0.0, 0, 4, 0, 1, 1, 0, 4]])
        >>> box_iou_quadri(square, dart), box_iou_quadri(dart, square, mode="iof", aligned=True)
        (tensor([[0.2500]]), tensor([1.]))
    """
    if aligned:
        return _matched(boxes1, boxes2, mode)
    return _pairwise(boxes1, boxes2, mode)


def nms_quadri(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Keeps the highest-scoring quadrilaterals that do not overlap a better one too much.

    Boxes are visited by descending score (NaN first, as in ``torch.sort``), ties in input order. A
    box is suppressed if its IoU with a kept box is strictly greater than the threshold. The IoU is
    that of :func:`box_iou_quadri`, rounded to float32 (float64 for float64 boxes). An undefined IoU
    suppresses nothing. The result is the same on every device, instruction set and number of
    threads.

    Args:
        boxes: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in pixels, in order.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring box is suppressed.

    Returns:
        int64 ``[K]``: indices of the kept boxes, by descending score.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, or a NaN threshold.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 0, 4, 4, 0, 4], [0, 0, 4, 0, 4, 3, 0, 3]])
        >>> nms_quadri(boxes, torch.tensor([0.5, 0.9]), 0.5)
        tensor([1])
    """
    return _nms_quadri(boxes, scores, iou_threshold)
