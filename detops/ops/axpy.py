"""2x + y: the first op of the tutorial."""

from torch import Tensor, nn

from .. import _C

_axpy = _C.axpy.default  # resolved once: the call costs about as much as the op


def axpy(x: Tensor, y: Tensor, alpha: float = 2.0) -> Tensor:
    """``alpha * x + y``, differentiable in x and y any number of times.

    Args:
        x: any shape, floating.
        y: the shape, dtype and device of ``x``.
        alpha: the factor.

    Returns:
        The shape of ``x``, contiguous.

    Raises:
        RuntimeError: ``y`` differs from ``x`` in shape, dtype or device, or ``x`` is not floating.
    """
    return _axpy(x, y, alpha)


class Axpy(nn.Module):
    """See :func:`axpy`."""

    def __init__(self, alpha: float = 2.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """See :func:`axpy`."""
        return axpy(x, y, self.alpha)

    def extra_repr(self) -> str:
        """The factor."""
        return f"alpha={self.alpha}"
