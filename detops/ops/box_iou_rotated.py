"""Overlap of rotated boxes."""

from torch import Tensor

from ._shared import undifferentiable
from .rotated_iou import rotated_iou

_pairwise = undifferentiable("box_iou_rotated")


def box_iou_rotated(
    boxes1: Tensor, boxes2: Tensor, mode: str = "iou", aligned: bool = False
) -> Tensor:
    """Computes the intersection over union of all pairs of rotated boxes.

    A rotated box is (cx, cy, w, h, angle): centre and size in pixels, angle in degrees,
    counter-clockwise as seen in an image whose y axis points down. The side w runs along
    (cos, -sin), the side h along (sin, cos).

    Overlaps are computed in float64, relative to one of the two boxes. They are therefore as
    accurate far from the origin and for thin boxes as elsewhere. They are always in [0, 1], with
    the same bits on every device and instruction set. The intersection does not depend on the order
    of a pair. An undefined overlap (0/0, NaN or infinite boxes) is 0. So is the overlap with a box
    that has a side that is not positive.

    Not differentiable; see :func:`rotated_iou` for a differentiable overlap of matched boxes.

    Args:
        boxes1: ``[N, 5]``, rotated boxes.
        boxes2: ``[M, 5]``, rotated boxes.
        mode: ``iou`` divides the intersection by the area of the union, ``iof`` (intersection over
            foreground) by the area of the box of ``boxes1``.
        aligned: compares each box of ``boxes1`` only with the one at the same position in
            ``boxes2``. Both then have the same shape, which may have more leading dimensions.

    Returns:
        ``[N, M]``, or ``[N]`` if aligned: float32, or float64 if one of the inputs is float64.

    Raises:
        RuntimeError: wrong shape or dtype, an unknown mode, or devices that differ.

    Example:
        >>> wide, half = torch.tensor([[5.0, 5, 8, 2, 0], [5, 5, 4, 2, 0]]).split(1)
        >>> box_iou_rotated(wide, half), box_iou_rotated(half, wide, mode="iof", aligned=True)
        (tensor([[0.5000]]), tensor([1.]))
    """
    if aligned:
        return rotated_iou(boxes1, boxes2, mode)
    return _pairwise(boxes1, boxes2, mode)
