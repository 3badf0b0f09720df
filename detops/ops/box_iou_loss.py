"""Losses from the overlap of matched boxes."""

from typing import Any

import torch
from torch import Tensor

from .. import _C


class BoxIoULossFunction(torch.autograd.Function):
    """Differentiable in both boxes, once."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`generalized_box_iou_loss` and its kin."""
        return _C.box_iou_loss_forward(boxes1, boxes2, kind, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str, float], output: Tensor) -> None:
        """Keeps the boxes."""
        boxes1, boxes2, ctx.kind, ctx.eps = inputs
        ctx.save_for_backward(boxes1, boxes2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """See csrc/math/overlap.inl."""
        boxes1, boxes2 = ctx.saved_tensors
        return *_C.box_iou_loss_backward(grad, boxes1, boxes2, ctx.kind, ctx.eps), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], boxes1: Tensor, boxes2: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """One more dimension of pairs."""
        first, second = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((boxes1, boxes2), in_dims, strict=False)
        )
        return BoxIoULossFunction.apply(first, second, *rest), 0


def _loss(boxes1: Tensor, boxes2: Tensor, kind: str, reduction: str, eps: float) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"detops: reduction must be none, mean or sum, got {reduction}")
    loss = BoxIoULossFunction.apply(boxes1, boxes2, kind, eps)
    if reduction == "none":
        return loss
    # The mean of nothing is 0, not NaN.
    return loss.mean() if reduction == "mean" and loss.numel() > 0 else loss.sum()


def generalized_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 less the generalized IoU of matched boxes, in one pass each way.

    "Generalized Intersection over Union" (Rezatofighi et al., 2019), equation 4. Boxes without area
    give finite values and gradients; a coordinate that is NaN or infinite gives NaN.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels.
        boxes2: ``[..., 4]`` of the same size.
        reduction: ``none``, ``mean`` (0 where there are no boxes) or ``sum``.
        eps: added to the areas of the union and of the enclosing box.

    Returns:
        ``[...]`` in [0, 2], or a single number: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, sizes or devices that differ.
        ValueError: an unknown reduction.
    """
    return _loss(boxes1, boxes2, "giou", reduction, eps)


def distance_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 less the distance IoU of matched boxes.

    "Distance-IoU Loss" (Zheng et al., 2020), equation 7. Otherwise as
    :func:`generalized_box_iou_loss`.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels.
        boxes2: ``[..., 4]`` of the same size.
        reduction: ``none``, ``mean`` or ``sum``.
        eps: added to the area of the union and to the squared diagonal of the enclosing box.
    """
    return _loss(boxes1, boxes2, "diou", reduction, eps)


def complete_box_iou_loss(
    boxes1: Tensor, boxes2: Tensor, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 less the complete IoU of matched boxes.

    "Distance-IoU Loss" (Zheng et al., 2020), equation 10, with the trade-off factor held constant
    in the derivative. Otherwise as :func:`generalized_box_iou_loss`.

    Args:
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels.
        boxes2: ``[..., 4]`` of the same size.
        reduction: ``none``, ``mean`` or ``sum``.
        eps: added to the denominator of the trade-off factor. As in torchvision, the area of the
            union and the squared diagonal get 1e-7 whatever it is.
    """
    return _loss(boxes1, boxes2, "ciou", reduction, eps)
