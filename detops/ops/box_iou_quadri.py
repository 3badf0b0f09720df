"""Overlap and non-maximum suppression of quadrilaterals."""

from torch import Tensor

from ..registration import plain
from ._shared import undifferentiable

_pairwise = undifferentiable("box_iou_quadri")
_matched = undifferentiable("box_iou_quadri_pairs")
_nms_quadri = plain("nms_quadri")


def box_iou_quadri(
    boxes1: Tensor, boxes2: Tensor, mode: str = "iou", aligned: bool = False
) -> Tensor:
    """Intersection over union of all pairs of quadrilaterals.

    Their corners may come in either direction, and they may be concave; of one whose sides cross,
    the triangles count against each other. Computed in float64, with the same bits on every device
    and for either order of a pair. An overlap without value (0/0, NaN or infinite numbers) is 0.
    Not differentiable.

    Args:
        boxes1: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in pixels, in order.
        boxes2: ``[M, 8]``, likewise.
        mode: what the intersection is divided by: the area of the union (``iou``), or that of the
            box of ``boxes1`` (``iof``, intersection over foreground).
        aligned: each box of ``boxes1`` with that of the same place in ``boxes2`` alone; then the
            sizes of both are the same, and may have more dimensions in front.

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
    box falls when its IoU with a kept box, as :func:`box_iou_quadri` gives it (rounded to float32,
    or float64 for float64 boxes), is strictly greater than the threshold; an IoU without value
    suppresses nothing. The result is the same on every device, instruction set and number of
    threads.

    Args:
        boxes: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in pixels, in order.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring box falls.

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
