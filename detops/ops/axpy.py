"""2x + y: the first op of the tutorial."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..module import Module
from ..registration import derivative
from ._shared import Function

_forward = torch.ops.detops.axpy_forward.default
_backward = torch.ops.detops.axpy_backward.default


class AxpyFunction(Function):
    """Autograd function, linear in x and y."""

    linear_in = (slice(2),)

    @staticmethod
    def forward(x: Tensor, y: Tensor, alpha: float) -> Tensor:
        """Runs the kernel."""
        return _forward(x, y, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the factor."""
        ctx.alpha = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        """Returns (alpha grad, grad)."""
        return *AxpyBackwardFunction.run(grad, ctx.alpha), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, int]:
        """Adds one dimension; the op is elementwise."""
        size = info.batch_size
        both = [
            t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip((x, y), in_dims, strict=False)
        ]
        return AxpyFunction.run(*both, alpha), 0


class AxpyBackwardFunction(Function):
    """The transpose of :class:`AxpyFunction`."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(grad: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
        """Runs the kernel."""
        return _backward(grad, alpha)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keeps the factor."""
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad_x: Tensor, grad_y: Tensor) -> tuple[Tensor, None]:
        """Returns alpha grad_x + grad_y, which is axpy itself."""
        return axpy(grad_x, grad_y, ctx.alpha), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, grad: Tensor, alpha: float) -> tuple[tuple, tuple]:
        """Adds one dimension; the op is elementwise."""
        return AxpyBackwardFunction.run(grad.movedim(in_dims[0], 0), alpha), (0, 0)


_axpy = derivative("axpy", AxpyFunction.run)


@torch.fx.wrap
def axpy(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """Returns ``alpha * x + y``, differentiable in x and y any number of times.

    Args:
        x: floating tensor of any shape.
        y: tensor of the same shape, dtype and device.
        alpha: factor of ``x``.

    Returns:
        A contiguous tensor of the same shape.

    Raises:
        RuntimeError: ``y`` differs from ``x`` in shape, dtype or device, or ``x`` is not floating.

    Example:
        >>> axpy(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
        tensor([12., 24.])
    """
    return _axpy(x, y, alpha)


class Axpy(Module):
    """See :func:`axpy`.

    Example:
        >>> Axpy(alpha=3.0)(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]))
        tensor([13., 26.])
    """

    def __init__(self, alpha: float = 2.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Turns two ``[...]`` of one shape into ``[...]``; see :func:`axpy`."""
        return axpy(x, y, self.alpha)

    def extra_repr(self) -> str:
        """Returns the factor."""
        return f"alpha={self.alpha}"
