"""Filters rotated to several orientations."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, fold, front, unfold


class ActiveRotatedFilterFunction(Function):
    """Autograd function, linear in ``input``. Indices get no gradient."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(input: Tensor, indices: Tensor) -> Tensor:
        """See :func:`active_rotated_filter`."""
        return _C.active_rotated_filter_forward(input, indices)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the indices."""
        input, indices = inputs
        ctx.save_for_backward(indices)
        ctx.planes = input.shape[:2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Sums the gradients at all positions of each weight."""
        return ActiveRotatedFilterBackwardFunction.run(grad, *ctx.saved_tensors, *ctx.planes), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, input: Tensor, indices: Tensor) -> tuple[Tensor, int]:
        """Makes one call over the folded filters, or one per set of indices."""
        batch, run = info.batch_size, ActiveRotatedFilterFunction.run
        if in_dims[1] is None:
            return unfold(run(fold(input, in_dims[0], batch), indices), batch), 0
        pairs = front(input, in_dims[0], batch), front(indices, in_dims[1], batch)
        return torch.stack([run(*pair) for pair in zip(*pairs, strict=True)]), 0


class ActiveRotatedFilterBackwardFunction(Function):
    """The transpose of :class:`ActiveRotatedFilterFunction`: its derivative is the forward pass."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(grad: Tensor, indices: Tensor, outputs: int, inputs: int) -> Tensor:
        """Returns the gradient of filters ``[outputs, inputs, ...]``."""
        return _C.active_rotated_filter_backward(grad, indices, outputs, inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the indices."""
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Runs the forward pass on the gradient (double backward)."""
        return ActiveRotatedFilterFunction.run(grad, *ctx.saved_tensors), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, grad: Tensor, indices: Tensor, outputs: int, inputs: int
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded gradients, or one per set of indices."""
        batch, run = info.batch_size, ActiveRotatedFilterBackwardFunction.run
        if in_dims[1] is None:
            grads = fold(grad, in_dims[0], batch)
            return unfold(run(grads, indices, batch * outputs, inputs), batch), 0
        pairs = front(grad, in_dims[0], batch), front(indices, in_dims[1], batch)
        results = [run(*pair, outputs, inputs) for pair in zip(*pairs, strict=True)]
        return torch.stack(results), 0


_active_rotated_filter = derivative("active_rotated_filter", ActiveRotatedFilterFunction.run)


@torch.fx.wrap
def active_rotated_filter(input: Tensor, indices: Tensor) -> Tensor:
    """Rotates the filters of a rotation-equivariant convolution by moving their weights.

    These are the active rotating filters of "Oriented Response Networks" (Zhou et al., 2017),
    section 3.1. ReDet and S2ANet use them. A filter has weights for several orientations. Each
    rotation moves the same weights to other positions, within orientations and between them.
    Weights that move to the same position are added, and a position without weights is 0. Sums use
    at least float32. The op is linear, and differentiable any number of times.

    Args:
        input: ``[O, I, orientations, H, W]``, the filters.
        indices: integers ``[orientations, H, W, rotations]``, the position of each weight in each
            rotation. Positions are counted from 1, in the order of ``input``'s last three
            dimensions.

    Returns:
        ``[O * rotations, I * orientations, H, W]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; on the CPU, an index outside
            ``[1, orientations * H * W]`` (on CUDA such a weight is dropped).

    Example:
        >>> filters = torch.arange(4.0).view(1, 1, 1, 2, 2)
        >>> clockwise = torch.tensor([2, 4, 1, 3]).view(1, 2, 2, 1)
        >>> active_rotated_filter(filters, clockwise)[0, 0].tolist()
        [[2.0, 0.0], [3.0, 1.0]]
    """
    return _active_rotated_filter(input, indices)
