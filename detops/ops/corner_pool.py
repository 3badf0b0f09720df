"""Corner pooling."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..registration import derivative
from ._shared import Function, PoolingModule, fold, raw, unfold

_FORWARD = torch.ops.detops.corner_pool_forward.default
_BACKWARD = torch.ops.detops.corner_pool_backward.default


class CornerPoolFunction(Function):
    """Autograd function, differentiable once."""

    @staticmethod
    def forward(input: Tensor, mode: str) -> Tensor:
        """See :func:`corner_pool`."""
        output: Tensor = _FORWARD(input, mode)
        return output

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps input and output: where they are equal, a pixel is the largest so far."""
        input, ctx.mode = inputs
        ctx.save_for_backward(input, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Sums the gradients of all pixels into the pixel that was the largest for them."""
        return raw(_BACKWARD, grad, *ctx.saved_tensors, ctx.mode), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, input: Tensor, mode: str) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        folded = fold(input, in_dims[0], info.batch_size)
        return unfold(CornerPoolFunction.run(folded, mode), info.batch_size), 0


_corner_pool = derivative("corner_pool", CornerPoolFunction.run)


@torch.fx.wrap
def corner_pool(input: Tensor, mode: str) -> Tensor:
    """Returns the largest feature between each pixel and one side of the feature map.

    See "CornerNet" (Law and Deng, 2018), section 3.2. Its top-left corner pooling is the sum of
    "top" and "left". "top" scans from a pixel down to the last row, to find what lies below the top
    border of a box. "bottom" scans up, "left" to the right, "right" to the left. The result is that
    of ``torch.cummax`` along the axis, in reverse for "top" and "left". NaN is larger than
    anything. Of equal features, the one nearest to the pixel gets the gradient. Differentiable
    once.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        mode: "top", "bottom", "left" or "right".

    Returns:
        ``[N, C, H, W]`` in the dtype of ``input``.

    Raises:
        RuntimeError: a wrong shape or dtype; an unknown mode.

    Example:
        >>> corner_pool(torch.tensor([[[[1.0, 3, 2, 4, 0]]]]), "right").tolist()
        [[[[1.0, 3.0, 3.0, 4.0, 4.0]]]]
    """
    return _corner_pool(input, mode)


class CornerPool(PoolingModule):
    """See :func:`corner_pool`.

    Example:
        >>> CornerPool("top")(torch.tensor([[[[0.0], [3.0], [1.0], [2.0]]]])).flatten()
        tensor([3., 3., 2., 2.])
    """

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Tensor) -> Tensor:
        """Pools ``[N, C, H, W]`` to the same shape."""
        return corner_pool(x, self.mode)
