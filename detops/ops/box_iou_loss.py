"""Losses from the overlap of matched boxes."""

from typing import Any

import torch
from torch import Tensor

from .. import _C
from ..contract import INTEGER
from ..registration import composition
from ._shared import raw
from .box_iou import BoxIoUFunction


class BoxIoULossFunction(BoxIoUFunction):
    """Differentiable in both boxes, once."""

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor, kind: str, eps: float) -> Tensor:
        """See :func:`generalized_box_iou_loss` and related losses."""
        return _C.box_iou_loss_forward(boxes1, boxes2, kind, eps)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """See csrc/math/overlap.inl."""
        boxes1, boxes2 = ctx.saved_tensors
        return *raw(_C.box_iou_loss_backward, grad, boxes1, boxes2, ctx.kind, ctx.eps), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], boxes1: Tensor, boxes2: Tensor, *rest: Any
    ) -> tuple[Tensor, int]:
        """One more dimension of pairs."""
        first, second = (
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip((boxes1, boxes2), in_dims, strict=False)
        )
        return BoxIoULossFunction.run(first, second, *rest), 0


def _alike(boxes1: Tensor, boxes2: Tensor) -> tuple[Tensor, Tensor]:
    """Floating boxes of one size. What cannot be made so is left for the op to refuse."""
    if boxes1.dtype in INTEGER:
        boxes1 = boxes1.float()
    if boxes2.dtype in INTEGER:
        boxes2 = boxes2.float()
    if boxes1.shape[-1:] != boxes2.shape[-1:]:
        return boxes1, boxes2
    # Sizes that nobody knows while a graph is made are not to be compared.
    if not torch.compiler.is_dynamo_compiling():
        sizes = zip(boxes1.shape[::-1], boxes2.shape[::-1], strict=False)
        if not all(a == b or 1 in (a, b) for a, b in sizes):
            return boxes1, boxes2
    boxes1, boxes2 = torch.broadcast_tensors(boxes1, boxes2)
    return boxes1, boxes2


def _loss(boxes1: Tensor, boxes2: Tensor, kind: str, reduction: str, eps: float) -> Tensor:
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"detops: reduction must be none, mean or sum, got {reduction}")
    floating = boxes1.is_floating_point() and boxes2.is_floating_point()
    if torch.compiler.is_dynamo_compiling() or not floating or boxes1.shape != boxes2.shape:
        boxes1, boxes2 = _alike(boxes1, boxes2)
    loss = BoxIoULossFunction.run(boxes1, boxes2, kind, eps)
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
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]`` likewise, of the same size or of one that broadcasts.
        reduction: ``none``, ``mean`` (0 where there are no boxes) or ``sum``.
        eps: added to the areas of the union and of the enclosing box.

    Returns:
        ``[...]`` in [0, 2], or a single number: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, sizes that do not broadcast, or devices that differ.
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
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]`` likewise, of the same size or of one that broadcasts.
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
        boxes1: ``[..., 4]`` as (x1, y1, x2, y2) in pixels, floating or integer.
        boxes2: ``[..., 4]`` likewise, of the same size or of one that broadcasts.
        reduction: ``none``, ``mean`` or ``sum``.
        eps: added to the denominator of the trade-off factor. As in torchvision, the area of the
            union and the squared diagonal get 1e-7 whatever it is.
    """
    return _loss(boxes1, boxes2, "ciou", reduction, eps)


composition("generalized_box_iou_loss", generalized_box_iou_loss)
composition("distance_box_iou_loss", distance_box_iou_loss)
composition("complete_box_iou_loss", complete_box_iou_loss)
