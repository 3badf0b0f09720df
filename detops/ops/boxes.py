"""Small operations on boxes, composed of ATen ops."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ..contract import FLOAT, INTEGER, MAX_SIZE
from ..contract_call import shown
from ..registration import CONTRACTS, composition
from ._shared import two_of

_DEGREE = math.pi / 180
_DTYPES = (*FLOAT, *INTEGER)


def _check(op: str, boxes: Tensor, columns: int, **others: object) -> None:
    """Checks the contract, which is slow, only if something is wrong with the boxes."""
    dense = boxes.layout == torch.strided and not boxes.is_nested
    if dense and boxes.dtype in _DTYPES and boxes.dim() > 0 and boxes.shape[-1] == columns:
        return
    CONTRACTS[op].check({"boxes": boxes, "columns": columns, **others})


def _widen_narrow_integers(boxes: Tensor) -> Tensor:
    """Converts 8- and 16-bit integers to int32: sums and products of coordinates overflow them."""
    narrow = boxes.dtype in INTEGER and boxes.dtype != torch.int64
    return boxes.to(torch.int32) if narrow else boxes


def _columns(boxes: Tensor, count: int = 4) -> Sequence[Tensor]:
    """Splits columns. ``unbind`` is one call but needs all sizes; a trace may not have them."""
    if type(boxes) is Tensor and not is_compiling():
        return boxes.unbind(-1)
    return [boxes.select(-1, i) for i in range(count)]


def _stack(*columns: Tensor) -> Tensor:
    return torch.stack(columns, -1)


# Upright formats are converted by way of xyxy.


def _halves(boxes: Tensor) -> Sequence[Tensor]:
    if type(boxes) is Tensor and not is_compiling():
        return boxes.split(2, -1)
    return boxes.narrow(-1, 0, 2), boxes.narrow(-1, 2, 2)


def _xywh_to_xyxy(boxes: Tensor) -> Tensor:
    first, size = _halves(boxes)
    return torch.cat((first, first + size), -1)


def _xyxy_to_xywh(boxes: Tensor) -> Tensor:
    first, last = _halves(boxes)
    return torch.cat((first, last - first), -1)


def _cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    centre, size = _halves(boxes)
    half = 0.5 * size
    return torch.cat((centre - half, centre + half), -1)


def _xyxy_to_cxcywh(boxes: Tensor) -> Tensor:
    first, last = _halves(boxes)
    return torch.cat(((first + last) / 2, last - first), -1)


# Rotated formats are converted by way of xywhr: the first corner, the size, and the angle in
# degrees, counter-clockwise in an image whose y axis points down. The side w runs along
# (cos, -sin), the side h along (sin, cos).


def _shift_by_half_size(boxes: Tensor, sign: int) -> Tensor:
    x, y, w, h, degrees = _columns(boxes, 5)
    angle = degrees * _DEGREE
    cos, sin = angle.cos(), angle.sin()
    half_w, half_h = w * (0.5 * sign), h * (0.5 * sign)
    return _stack(x + half_w * cos + half_h * sin, y - half_w * sin + half_h * cos, w, h, degrees)


def _xywhr_to_corners(boxes: Tensor) -> Tensor:
    x, y, w, h, degrees = _columns(boxes, 5)
    angle = degrees * _DEGREE
    cos, sin = angle.cos(), angle.sin()
    wx, wy, hx, hy = w * cos, -w * sin, h * sin, h * cos
    return _stack(x, y, x + wx, y + wy, x + wx + hx, y + wy + hy, x + hx, y + hy)


def _corners_to_xywhr(boxes: Tensor) -> Tensor:
    c = _columns(boxes, 8)
    wx, wy, hx, hy = c[2] - c[0], c[1] - c[3], c[4] - c[2], c[5] - c[3]
    angle = torch.atan2(wy, wx) / _DEGREE
    return _stack(c[0], c[1], (wx * wx + wy * wy).sqrt(), (hx * hx + hy * hy).sqrt(), angle)


def _identity(boxes: Tensor) -> Tensor:
    return boxes


Format = tuple[int, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]
# Number of columns, conversion to the common format, and conversion from it.
_UPRIGHT: dict[str, Format] = {
    "xyxy": (4, _identity, _identity),
    "xywh": (4, _xywh_to_xyxy, _xyxy_to_xywh),
    "cxcywh": (4, _cxcywh_to_xyxy, _xyxy_to_cxcywh),
}
ROTATED: dict[str, Format] = {
    "xywhr": (5, _identity, _identity),
    "cxcywhr": (
        5,
        lambda boxes: _shift_by_half_size(boxes, -1),
        lambda boxes: _shift_by_half_size(boxes, 1),
    ),
    "xyxyxyxy": (8, _corners_to_xywhr, _xywhr_to_corners),
}


def _area(boxes: Tensor, fmt: str) -> Tensor:
    CONTRACTS["box_area"].check_keyword("fmt", fmt)
    _check("box_area", boxes, 4, fmt=fmt)
    widened = boxes
    if boxes.dtype in (torch.float16, torch.bfloat16):  # their products overflow from 256 pixels on
        widened = boxes.float()
    elif boxes.dtype not in FLOAT:
        widened = _widen_narrow_integers(boxes)
    a, b, c, d = _columns(widened)
    return (c - a) * (d - b) if fmt == "xyxy" else c * d


_box_area = composition("box_area", _area)


def box_area(boxes: Tensor, fmt: str = "xyxy") -> Tensor:
    """Returns the area of each box in square pixels: ``[..., 4]`` to ``[...]``.

    Half-precision boxes give float32 areas, and 8- and 16-bit integers give int32 areas, because
    they would overflow from 256 pixels on.

    Args:
        boxes: ``[..., 4]``, floating or integer, in the format ``fmt``.
        fmt: ``xyxy`` (corners), ``xywh`` (first corner and size) or ``cxcywh`` (centre and size).

    Raises:
        ValueError: an unknown format.
        RuntimeError: wrong shape or dtype.

    Example:
        >>> box_area(torch.tensor([[2, 3, 6, 5]]))
        tensor([8])
        >>> box_area(torch.tensor([[2, 3, 6, 5]]), fmt="xywh")
        tensor([30])
    """
    return _box_area(boxes, fmt)


def _convert(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
    for formats in (_UPRIGHT, ROTATED):
        if in_fmt in formats and out_fmt in formats:
            break
    else:
        raise ValueError(
            "detops.box_convert: in_fmt and out_fmt must both be one of xyxy, xywh, cxcywh, or "
            f"both one of xywhr, cxcywhr, xyxyxyxy, got {shown(in_fmt)} and {shown(out_fmt)}"
        )
    columns, to_common, _ = formats[in_fmt]
    _check("box_convert", boxes, columns)
    widened = _widen_narrow_integers(boxes)
    if in_fmt == out_fmt:
        return boxes.clone() if widened is boxes else widened
    # Angles need floats. Integer boxes are rounded back to integers.
    if formats is ROTATED and not boxes.is_floating_point():
        return formats[out_fmt][2](to_common(widened.to(torch.float32))).round().to(widened.dtype)
    return formats[out_fmt][2](to_common(widened))


_box_convert = composition("box_convert", _convert)


def box_convert(boxes: Tensor, in_fmt: str, out_fmt: str) -> Tensor:
    """Converts boxes from one format to another.

    The upright formats are ``xyxy`` (corners), ``xywh`` (first corner and size) and ``cxcywh``
    (centre and size). The rotated formats are ``xywhr`` and ``cxcywhr``, rotated counter-clockwise
    about the first corner or the centre by an angle in degrees, and ``xyxyxyxy`` (the four
    corners). 8- and 16-bit integers are returned as int32, because sums of coordinates overflow
    them.

    Args:
        boxes: ``[N, 4]``, ``[N, 5]`` or ``[N, 8]``, depending on ``in_fmt``.
        in_fmt: format of ``boxes``.
        out_fmt: format of the result; upright if ``in_fmt`` is, else rotated.

    Raises:
        ValueError: an unknown format, or an upright and a rotated one.
        RuntimeError: wrong shape or dtype.

    Example:
        >>> box_convert(torch.tensor([[2.0, 3, 6, 5]]), "xyxy", "cxcywh")
        tensor([[4., 4., 4., 2.]])
        >>> box_convert(torch.tensor([[4.0, 4, 4, 2, 90]]), "cxcywhr", "xyxyxyxy").round(decimals=3)
        tensor([[3., 6., 3., 2., 5., 2., 5., 6.]])
    """
    return _box_convert(boxes, in_fmt, out_fmt)


def _clip(boxes: Tensor, height: int, width: int) -> Tensor:
    _check("clip_boxes_to_image", boxes, 4, height=0, width=0)
    if not (0 <= height <= MAX_SIZE and 0 <= width <= MAX_SIZE):
        CONTRACTS["clip_boxes_to_image"].check({"boxes": boxes, "height": height, "width": width})
    # If the dtype of the boxes cannot hold a side of the image, no box extends beyond it.
    info = torch.iinfo if boxes.dtype in INTEGER else torch.finfo
    max_size = int(min(info(boxes.dtype).max, MAX_SIZE))
    max_y, max_x = (min(size, max_size) for size in (height, width))
    # Two calls each for x and y; four separate columns would need twice as many.
    x, y = boxes[..., 0::2], boxes[..., 1::2]
    return torch.stack((x.clamp(0, max_x), y.clamp(0, max_y)), -1).flatten(-2)


_clip_boxes_to_image = composition("clip_boxes_to_image", _clip)


def clip_boxes_to_image(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Moves corners that lie outside an image of ``size`` (height, width) onto its border.

    Args:
        boxes: ``[..., 4]`` as (x1, y1, x2, y2) in pixels.
        size: ``(height, width)``.

    Raises:
        RuntimeError: wrong shape or dtype, or a size below 0 or above 2^31 - 1.

    Example:
        >>> clip_boxes_to_image(torch.tensor([[-3, 2, 6, 99]]), (40, 60))
        tensor([[ 0,  2,  6, 40]])
    """
    if not isinstance(size, tuple) or len(size) != 2:
        if not torch.jit.is_scripting():
            size = two_of("clip_boxes_to_image", "size", "(height, width)", size)
    height, width = size
    return _clip_boxes_to_image(boxes, height, width)


def _remove_small(boxes: Tensor, min_size: float) -> Tensor:
    if boxes.dim() != 2:
        CONTRACTS["remove_small_boxes"].check({"boxes": boxes})
    _check("remove_small_boxes", boxes, 4)
    if boxes.is_meta:
        raise NotImplementedError(
            "detops.remove_small_boxes: boxes must have values, which determine the size of the "
            "result, got a meta tensor"
        )
    x1, y1, x2, y2 = _columns(_widen_narrow_integers(boxes))
    return torch.logical_and(x2 - x1 >= min_size, y2 - y1 >= min_size).nonzero().squeeze(-1)


_remove_small_boxes = composition("remove_small_boxes", _remove_small)


def remove_small_boxes(boxes: Tensor, min_size: float) -> Tensor:
    """Returns the indices of the boxes whose sides are both at least ``min_size`` pixels.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        min_size: smallest side to keep.

    Returns:
        int64 ``[K]``.

    Example:
        >>> remove_small_boxes(torch.tensor([[2, 3, 6, 5], [2, 3, 6, 9]]), min_size=3)
        tensor([1])
    """
    return _remove_small_boxes(boxes, min_size)
