"""Derivatives of RoI ops that are linear in their input."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ..registration import derivative
from ._shared import Function, fold, fold_boxes, in_format, memory_format, unfold

Ops = tuple[OpOverload, OpOverload]


class LinearPoolingFunction(Function):
    """Autograd function of an op that is linear in ``input``. Boxes get no gradient.

    ``ops`` are the raw forward and backward ops. ``pooling`` are the arguments that both share: the
    scale, the height and width of the output, and others.
    """

    linear_in = (slice(1),)

    @staticmethod
    def forward(input: Tensor, boxes: Tensor, ops: Ops, pooling: tuple) -> Tensor:
        """Calls the raw forward op."""
        pooled: Tensor = ops[0](input, boxes, *pooling)
        return pooled

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes, and the size and layout of the input."""
        input, boxes, ops, pooling = inputs
        ctx.save_for_backward(boxes)
        ctx.settings = ops, pooling, input.shape, memory_format(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Applies the transpose of the forward pass."""
        (boxes,) = ctx.saved_tensors
        ops, pooling, size, layout = ctx.settings
        grad = in_format(grad, layout)
        return LinearPoolingBackwardFunction.run(grad, boxes, ops, pooling, size), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, input: Tensor, boxes: Tensor, ops: Ops, pooling: tuple
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        return unfold(LinearPoolingFunction.run(folded, boxes, ops, pooling), batch), 0


class LinearPoolingBackwardFunction(Function):
    """The transpose of :class:`LinearPoolingFunction`: its own derivative is the forward pass."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(
        grad: Tensor, boxes: Tensor, ops: Ops, pooling: tuple, size: tuple[int, int, int, int]
    ) -> Tensor:
        """Scatters ``grad`` into a feature map of the given size."""
        grad_input: Tensor = ops[1](grad, boxes, *pooling[:3], *size, *pooling[3:])
        return grad_input

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes."""
        _, boxes, ctx.ops, ctx.pooling, _ = inputs
        ctx.save_for_backward(boxes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Runs the forward pass on the gradient (double backward)."""
        (boxes,) = ctx.saved_tensors
        pooled = LinearPoolingFunction.run(grad, boxes, ctx.ops, ctx.pooling)
        return pooled, None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        grad: Tensor,
        boxes: Tensor,
        ops: Ops,
        pooling: tuple,
        size: tuple,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch, images = info.batch_size, size[0]
        boxes = fold_boxes(boxes, in_dims[1], batch, images)
        grad = fold(grad, in_dims[0], batch)
        size = (batch * images, *size[1:])
        return unfold(LinearPoolingBackwardFunction.run(grad, boxes, ops, pooling, size), batch), 0


def linear_pooling(op: str) -> Callable[..., Any]:
    """Registers the derivative of an op that is linear in its input."""
    raw = torch.ops.detops
    ops = getattr(raw, f"{op}_forward").default, getattr(raw, f"{op}_backward").default
    return derivative(
        op,
        lambda input, boxes, *pooling: LinearPoolingFunction.run(input, boxes, ops, pooling),
        raw=ops[0]._op,
    )
