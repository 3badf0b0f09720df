"""Pairwise overlaps of boxes."""

from typing import Any

import torch
from torch import Tensor

from .. import _C
from .boxes import box_convert


class BoxIoUFunction(torch.autograd.Function):
    """Differentiable in both sets of boxes, once."""

    generate_vmap_rule = True

    @staticmethod
    def forward(boxes1: Tensor, boxes2: Tensor) -> Tensor:
        """See :func:`box_iou`."""
        return _C.box_iou_forward(boxes1, boxes2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keeps the boxes."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over pairs, each box by one owner in a fixed order."""
        return _C.box_iou_backward(grad, *ctx.saved_tensors)


def box_iou(boxes1: Tensor, boxes2: Tensor, fmt: str = "xyxy") -> Tensor:
    """Intersection over union of every pair, in one pass and without temporaries.

    A ratio without a value (0/0, infinite or NaN boxes) is 0, never NaN.

    Args:
        boxes1: ``[N, 4]`` in pixels.
        boxes2: ``[M, 4]`` in pixels.
        fmt: format of both, one of ``xyxy``, ``xywh``, ``cxcywh``.

    Returns:
        ``[N, M]`` in [0, 1]: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape, dtype or device.
        ValueError: an unknown format.
    """
    if fmt != "xyxy":
        boxes1, boxes2 = box_convert(boxes1, fmt, "xyxy"), box_convert(boxes2, fmt, "xyxy")
    return BoxIoUFunction.apply(boxes1, boxes2)
