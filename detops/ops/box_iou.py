"""Pairwise overlaps of boxes."""

from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..contract import INTEGER
from ..registration import composition
from ._shared import Function, raw
from .box_iou_rotated import box_iou_rotated
from .boxes import ROTATED, box_convert


class BoxIoUFunction(Function):
    """Differentiable in both sets of boxes, once."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`box_iou` and related overlaps."""
        return _C.box_iou_forward(boxes1, boxes2, kind, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, float], output: Tensor) -> None:
        """Keeps the boxes."""
        boxes1, boxes2, ctx.kind, ctx.eps = inputs
        ctx.save_for_backward(boxes1, boxes2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Sums over pairs, each box by one owner in a fixed order."""
        boxes1, boxes2 = ctx.saved_tensors
        return *raw(_C.box_iou_backward, grad, boxes1, boxes2, ctx.kind, ctx.eps), None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        boxes1: Tensor,
        boxes2: Tensor,
        kind: str,
        eps: float,
    ) -> tuple[Tensor, int]:
        """One matrix after the other."""

        def each(boxes: Tensor, dim: int | None) -> tuple[Tensor, ...]:
            return (boxes,) * info.batch_size if dim is None else boxes.unbind(dim)

        pairs = zip(each(boxes1, in_dims[0]), each(boxes2, in_dims[1]), strict=True)
        return torch.stack([BoxIoUFunction.run(a, b, kind, eps) for a, b in pairs]), 0


def _overlap(
    boxes1: Tensor, boxes2: Tensor, kind: str, eps: float = 0.0, fmt: str = "xyxy"
) -> Tensor:
    if not (boxes1.is_floating_point() and boxes2.is_floating_point()):
        return _overlap_of_integers(boxes1, boxes2, kind, eps, fmt)
    if fmt != "xyxy":
        boxes1, boxes2 = box_convert(boxes1, fmt, "xyxy"), box_convert(boxes2, fmt, "xyxy")
    if boxes1.dim() <= 2 and boxes2.dim() <= 2:
        return BoxIoUFunction.run(boxes1, boxes2, kind, eps)
    batch = torch.broadcast_shapes(boxes1.shape[:-2], boxes2.shape[:-2])
    first = boxes1.expand(*batch, *boxes1.shape[-2:]).flatten(0, -3)
    second = boxes2.expand(*batch, *boxes2.shape[-2:]).flatten(0, -3)
    matrices = [BoxIoUFunction.run(a, b, kind, eps) for a, b in zip(first, second, strict=True)]
    shape = (*batch, boxes1.size(-2), boxes2.size(-2))
    if not matrices:  # no batch: the empty result, of the right dtype
        return _C.box_iou_forward(boxes1.new_zeros(0, 4), boxes2.new_zeros(0, 4)).new_zeros(shape)
    return torch.stack(matrices).reshape(shape)


def _overlap_of_integers(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float, fmt: str) -> Tensor:
    exact = [x.to(torch.float64) if x.dtype in INTEGER else x for x in (boxes1, boxes2)]
    if not all(x.is_floating_point() for x in exact):
        return _C.box_iou_forward(boxes1, boxes2, kind, eps)  # which refuses them by name
    dtype = torch.promote_types(boxes1.dtype, boxes2.dtype)
    overlap = _overlap(exact[0], exact[1], kind, eps, fmt)
    return overlap.to(torch.promote_types(dtype, torch.float32))


def box_iou(boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy") -> Tensor:
    """Intersection over union of every pair, in one pass and without temporaries.

    A ratio without a value (0/0, infinite or NaN boxes) is 0, never NaN.

    Args:
        boxes1: ``[..., N, 4]`` in pixels, floating or integer.
        boxes2: ``[..., M, 4]`` in pixels, likewise, with leading dimensions that broadcast.
        fmt: format of both, one of ``xyxy``, ``xywh``, ``cxcywh``; or of rotated boxes, ``[N, 5]``
            as ``cxcywhr`` or ``xywhr``, ``[N, 8]`` as ``xyxyxyxy``: see
            :func:`~detops.box_iou_rotated`.

    Returns:
        ``[..., N, M]`` in [0, 1]: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape, dtype or device.
        ValueError: an unknown format.
    """
    if fmt in ROTATED:
        first, second = (
            x if fmt == "cxcywhr" else box_convert(x, fmt, "cxcywhr") for x in (boxes1, boxes2)
        )
        return box_iou_rotated(first, second)
    return _overlap(boxes1, boxes2, "iou", fmt=fmt)


def generalized_box_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """IoU less the share of the enclosing box that neither box covers, of every pair.

    "Generalized Intersection over Union" (Rezatofighi et al., 2019), equation 4. Shapes, dtypes
    and errors as in :func:`box_iou`.

    Returns:
        ``[..., N, M]`` in [-1, 1].
    """
    return _overlap(boxes1, boxes2, "giou")


def distance_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = 1e-7) -> Tensor:
    """IoU less the squared distance of the centres over that of the enclosing box's diagonal.

    "Distance-IoU Loss" (Zheng et al., 2020), equation 6. Shapes, dtypes and errors as in
    :func:`box_iou`.

    Args:
        boxes1: ``[..., N, 4]`` in pixels.
        boxes2: ``[..., M, 4]`` in pixels.
        eps: added to the squared diagonal.

    Returns:
        ``[..., N, M]`` in [-1, 1].
    """
    return _overlap(boxes1, boxes2, "diou", eps)


def complete_box_iou(boxes1: Tensor, boxes2: Tensor, eps: float = 1e-7) -> Tensor:
    """Distance IoU less a term for unlike aspect ratios, of every pair.

    "Distance-IoU Loss" (Zheng et al., 2020), equations 8 to 11, with the trade-off factor held
    constant in the derivative. Shapes, dtypes and errors as in :func:`box_iou`.

    Args:
        boxes1: ``[..., N, 4]`` in pixels.
        boxes2: ``[..., M, 4]`` in pixels.
        eps: added to both denominators.

    Returns:
        ``[..., N, M]``.
    """
    return _overlap(boxes1, boxes2, "ciou", eps)


def match_boxes(boxes1: Tensor, boxes2: Tensor) -> tuple[Tensor, Tensor]:
    """The best partner in ``boxes2`` for each box of ``boxes1``; no ``[N, M]`` matrix is made.

    Equal to ``box_iou(boxes1, boxes2).max(dim=1)``, with the first of equals taken. Not
    differentiable.

    Args:
        boxes1: ``[N, 4]`` in pixels.
        boxes2: ``[M, 4]`` in pixels.

    Returns:
        The IoU ``[N]`` and the index int64 ``[N]``; 0 and -1 where ``boxes2`` is empty.

    Raises:
        RuntimeError: wrong shape, dtype or device.
    """
    return _C.match_boxes(boxes1.detach(), boxes2.detach())


composition("box_iou", box_iou)
composition("generalized_box_iou", generalized_box_iou)
composition("distance_box_iou", distance_box_iou)
composition("complete_box_iou", complete_box_iou)
