"""Small operations on boxes: compositions of ATen ops, written in C++."""

from torch import Tensor

from .. import _C


def box_area(boxes: Tensor, fmt: str = "xyxy") -> Tensor:
    """Area of each box in square pixels: ``[..., 4]`` to ``[...]``.

    Half precision boxes give a float32 area, and integers of 8 and 16 bits an int32 one: they
    would overflow from 256 pixels on.

    Args:
        boxes: ``[..., 4]``, floating or integers, in the format ``fmt``.
        fmt: ``xyxy`` (corners), ``xywh`` (first corner and size) or ``cxcywh`` (centre and size).

    Raises:
        ValueError: an unknown format.
        RuntimeError: wrong shape or dtype.
    """
    return _C.box_area(boxes, fmt)


def box_convert(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
    """Converts boxes from one format to another.

    Upright: ``xyxy`` (corners), ``xywh`` (first corner and size), ``cxcywh`` (centre and size).
    Rotated, by an angle in degrees, counter-clockwise, about the first corner or the centre:
    ``xywhr``, ``cxcywhr``, and ``xyxyxyxy`` (the four corners). Integers of 8 and 16 bits, which
    hold no sums of coordinates, come back as int32.

    Args:
        boxes: ``[N, 4]``, ``[N, 5]`` or ``[N, 8]``, as ``in_fmt`` has it.
        in_fmt: format of ``boxes``.
        out_fmt: format of the result; upright if ``in_fmt`` is.

    Raises:
        ValueError: an unknown format, or an upright with a rotated one.
        RuntimeError: wrong shape or dtype.
    """
    return _C.box_convert(boxes, in_fmt, out_fmt)


def clip_boxes_to_image(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Moves corners that lie outside an image of ``size`` (height, width) onto its border.

    Args:
        boxes: ``[..., 4]`` as (x1, y1, x2, y2) in pixels.
        size: ``(height, width)``.

    Raises:
        RuntimeError: wrong shape or dtype, or a size below 0 or above 2^31 - 1.
    """
    height, width = size
    return _C.clip_boxes_to_image(boxes, height, width)


def remove_small_boxes(boxes: Tensor, min_size: float) -> Tensor:
    """Indices of the boxes whose sides are both at least ``min_size`` pixels.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        min_size: smallest side that stays.

    Returns:
        int64 ``[K]``.
    """
    return _C.remove_small_boxes(boxes, min_size)
