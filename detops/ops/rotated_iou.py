"""Differentiable overlap of matched rotated boxes, and losses based on it."""

from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..registration import CONTRACTS, composition, derivative
from ._shared import Function, front, raw, reduced


class RotatedIoUFunction(Function):
    """Autograd function, differentiable once in both sets of boxes."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, mode: str) -> Tensor:
        """See :func:`rotated_iou`."""
        return _C.rotated_iou_forward(boxes1, boxes2, mode)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
        """Keeps the boxes."""
        boxes1, boxes2, ctx.mode = inputs
        ctx.save_for_backward(boxes1, boxes2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """See csrc/math/rotated_box.h."""
        return *raw(_C.rotated_iou_backward, grad, *ctx.saved_tensors, ctx.mode), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], boxes1: Tensor, boxes2: Tensor, mode: str
    ) -> tuple[Tensor, int]:
        """Adds one dimension of pairs."""
        pair = zip((boxes1, boxes2), in_dims, strict=False)
        first, second = (front(x, dim, info.batch_size) for x, dim in pair)
        return RotatedIoUFunction.run(first, second, mode), 0


_rotated_iou = derivative("rotated_iou", RotatedIoUFunction.run)


def rotated_iou(boxes1: Tensor, boxes2: Tensor, mode: str = "iou") -> Tensor:
    """Computes the IoU of matched rotated boxes, differentiable in both.

    The values are those of :func:`box_iou_rotated` with ``aligned``. The derivative is exact: the
    intersection grows by the length of each side's part inside the other box, times the speed at
    which a parameter moves that side outwards (Reynolds' transport theorem). Where sides coincide,
    the derivative is the mean of the one-sided derivatives, so a box with itself has a derivative
    of 0. It is also 0 where boxes do not overlap, and where the overlap is undefined.
    Differentiable once.

    Args:
        boxes1: ``[..., 5]`` as (cx, cy, w, h, angle) in pixels and degrees, counter-clockwise as
            seen in an image whose y axis points down.
        boxes2: likewise, of the same shape.
        mode: ``iou`` divides the intersection by the area of the union, ``iof`` by the area of the
            box of ``boxes1``.

    Returns:
        ``[...]`` in [0, 1]: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, an unknown mode, or devices that differ.

    Example:
        >>> boxes = torch.tensor([[5.0, 5, 4, 2, 0]], requires_grad=True)
        >>> iou = rotated_iou(boxes, torch.tensor([[7.0, 5, 4, 2, 0]]))
        >>> iou.backward()
        >>> iou.item(), boxes.grad[0, 0].item()
        (0.3333333432674408, 0.2222222238779068)
    """
    return _rotated_iou(boxes1, boxes2, mode)


def _extents(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the low and high corners of the upright box around each box."""
    angle = torch.deg2rad(boxes[..., 4:])
    sin, cos = angle.sin().abs(), angle.cos().abs()
    w, h = boxes[..., 2:4].abs().split(1, -1)
    half = torch.cat([w * cos + h * sin, w * sin + h * cos], -1) / 2
    return boxes[..., :2] - half, boxes[..., :2] + half


def _upright_hull(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Returns width and height of the smallest upright box around both, ``[..., 2]``."""
    (low1, high1), (low2, high2) = _extents(boxes1), _extents(boxes2)
    return torch.maximum(high1, high2) - torch.minimum(low1, low2)


def _side_product(sides: Tensor) -> Tensor:
    """Multiplies both sides. The derivative of ``prod`` needs a size that a graph may lack."""
    return sides[..., 0] * sides[..., 1]


def _loss(boxes1: Tensor, boxes2: Tensor, mode: str, reduction: str, eps: float) -> Tensor:
    contract = CONTRACTS["rotated_iou_loss"]
    contract.check_keyword("mode", mode)
    try:
        iou = rotated_iou(boxes1, boxes2)
    except RuntimeError:  # its message names rotated_iou
        contract.check(dict(boxes1=boxes1, boxes2=boxes2, mode=mode, reduction=reduction))
        raise
    loss = 1 - iou
    if mode != "iou":
        first, second = boxes1.to(iou.dtype), boxes2.to(iou.dtype)
        hull = _upright_hull(first, second)
    if mode == "giou":
        hull_area = _side_product(hull)
        areas = _side_product(first[..., 2:4].clamp(min=0)) + _side_product(
            second[..., 2:4].clamp(min=0)
        )
        # From iou = I / (A + B - I) follows the union (A + B) / (1 + iou).
        loss = loss + (hull_area - areas / (1 + iou)) / (hull_area + eps)
    elif mode == "diou":
        squared_distance = (first[..., :2] - second[..., :2]).square().sum(-1)
        loss = loss + squared_distance / (hull.square().sum(-1) + eps)
    return reduced("rotated_iou_loss", loss, reduction)


_rotated_iou_loss = composition("rotated_iou_loss", _loss)


def rotated_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    mode: str = "iou",
    reduction: str = "none",
    eps: float = 1e-7,
) -> Tensor:
    """Computes 1 minus the overlap of matched rotated boxes.

    ``iou`` is the loss of "IoU Loss for 2D/3D Object Detection" (Zhou et al., 2019), equation 2.
    ``giou`` adds the fraction of the enclosing box that neither box covers ("Generalized
    Intersection over Union", Rezatofighi et al., 2019, equation 4). ``diou`` adds the squared
    distance of the centres over the squared diagonal of the enclosing box ("Distance-IoU Loss",
    Zheng et al., 2020, equation 7). Both have a gradient where boxes do not overlap. The enclosing
    box is the smallest *upright* one, so upright boxes give the results of
    :func:`generalized_box_iou_loss` and :func:`distance_box_iou_loss`.

    Args:
        boxes1: ``[..., 5]`` as (cx, cy, w, h, angle); see :func:`rotated_iou`.
        boxes2: likewise, of the same shape.
        mode: ``iou``, ``giou`` or ``diou``.
        reduction: ``none``, ``mean`` (0 without boxes) or ``sum``.
        eps: added to the area of the enclosing box, and to its squared diagonal.

    Returns:
        ``[...]`` in [0, 2], or a scalar: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, or devices that differ.
        ValueError: an unknown mode or reduction.

    Example:
        >>> one, other = torch.tensor([[5.0, 5, 4, 2, 0], [9, 5, 4, 2, 0]]).split(1)
        >>> [rotated_iou_loss(one, other, mode).item() for mode in ("iou", "giou")]
        [1.0, 1.0]
    """
    return _rotated_iou_loss(boxes1, boxes2, mode, reduction, eps)
