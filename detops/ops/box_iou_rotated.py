"""Overlap of rotated boxes."""

from torch import Tensor

from .. import _C
from ._shared import raw


def box_iou_rotated(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Intersection over union of all pairs of rotated boxes.

    A rotated box is (cx, cy, w, h, angle): centre and size in pixels, angle in degrees,
    counter-clockwise as seen in an image whose y axis points down. The side w runs along
    (cos, -sin), the side h along (sin, cos).

    Overlaps are computed in float64, relative to one of the two boxes, and are therefore as good
    far from the origin, and for thin boxes, as elsewhere. They are always in [0, 1], the same bits
    on every device and instruction set, and for either order of a pair. An overlap without value
    (0/0, NaN or infinite boxes) is 0, and so is that with a box one of whose sides is not positive.

    Not differentiable.

    Args:
        boxes1: ``[N, 5]``, rotated boxes.
        boxes2: ``[M, 5]``, rotated boxes.

    Returns:
        ``[N, M]``, float32, or float64 if one of the inputs is float64.

    Raises:
        RuntimeError: wrong shape or dtype, or devices that differ.
    """
    return raw(_C.box_iou_rotated, boxes1, boxes2)
