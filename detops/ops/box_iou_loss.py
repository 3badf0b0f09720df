"""Overlap losses of matched boxes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..contract import INTEGER
from ..registration import composition, derivative
from ._shared import raw, reduced
from .box_iou import AlignedBoxIoUFunction, broadcast_boxes, move_batch_to_front

_kernel = torch.ops.detops.box_iou_loss_forward.default._op


class BoxIoULossFunction(AlignedBoxIoUFunction):
    """Autograd function, differentiable once in both sets of boxes."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`generalized_box_iou_loss` and related losses."""
        return _kernel(boxes1, boxes2, kind, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """See csrc/math/overlap.inl."""
        boxes1, boxes2 = ctx.saved_tensors
        return *raw(_C.box_iou_loss_backward, grad, boxes1, boxes2, ctx.kind, ctx.eps), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], boxes1: Tensor, boxes2: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """Adds one dimension of pairs."""
        first, second = move_batch_to_front(info, in_dims, boxes1, boxes2)
        return BoxIoULossFunction.run(first, second, *rest), 0


_matched = derivative("box_iou_loss", BoxIoULossFunction.run, raw=_kernel)


def _register_loss(name: str, kind: str) -> Callable[..., Any]:
    def loss(boxes1: Tensor, boxes2: Tensor, reduction: str, eps: float) -> Tensor:
        first, second = (x.float() if x.dtype in INTEGER else x for x in (boxes1, boxes2))
        return reduced(name, _matched(*broadcast_boxes(first, second), kind, eps), reduction)

    return composition(name, loss)


_generalized_box_iou_loss = _register_loss("generalized_box_iou_loss", "giou")
_distance_box_iou_loss = _register_loss("distance_box_iou_loss", "diou")
_complete_box_iou_loss = _register_loss("complete_box_iou_loss", "ciou")


def generalized_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """Computes 1 minus the generalized IoU of matched boxes, in one pass each way.

    See "Generalized Intersection over Union" (Rezatofighi et al., 2019), equation 4. Boxes without
    area give finite values and gradients. A NaN or infinite coordinate gives NaN.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]``, likewise, of the same shape or one that broadcasts.
        reduction: ``none``, ``mean`` (0 without boxes) or ``sum``.
        eps: added to the areas of the union and of the enclosing box.

    Returns:
        ``[...]`` in [0, 2], or a scalar: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, shapes that do not broadcast, or devices that differ.
        ValueError: an unknown reduction.

    Example:
        >>> first, second = torch.tensor([[0.0, 0, 4, 4]]), torch.tensor([[0.0, 0, 2, 4]])
        >>> generalized_box_iou_loss(first.requires_grad_(), second, reduction="sum").backward()
        >>> first.grad
        tensor([[ 0.0625,  0.0312,  0.1250, -0.0312]])
    """
    return _generalized_box_iou_loss(boxes1, boxes2, reduction, eps)


def distance_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """Computes 1 minus the distance IoU of matched boxes.

    See "Distance-IoU Loss" (Zheng et al., 2020), equation 7. Everything else is as in
    :func:`generalized_box_iou_loss`.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]``, likewise, of the same shape or one that broadcasts.
        reduction: ``none``, ``mean`` or ``sum``.
        eps: added to the area of the union and to the squared diagonal of the enclosing box.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 4], [6, 0, 8, 4]])
        >>> distance_box_iou_loss(boxes, boxes[:1])
        tensor([0.0000, 1.3125])
    """
    return _distance_box_iou_loss(boxes1, boxes2, reduction, eps)


def complete_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """Computes 1 minus the complete IoU of matched boxes.

    See "Distance-IoU Loss" (Zheng et al., 2020), equation 10. The trade-off factor is held constant
    in the derivative. Everything else is as in :func:`generalized_box_iou_loss`.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]``, likewise, of the same shape or one that broadcasts.
        reduction: ``none``, ``mean`` or ``sum``.
        eps: added to the denominator of the trade-off factor. As in torchvision, the area of the
            union and the squared diagonal always get 1e-7.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 4, 4], [6, 0, 8, 4]])
        >>> complete_box_iou_loss(boxes, boxes[:1])
        tensor([0.0000, 1.3142])
    """
    return _complete_box_iou_loss(boxes1, boxes2, reduction, eps)
