"""BorderAlign."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..registration import derivative
from ._shared import Function, PoolingModule, fold, raw, unfold

_FORWARD = torch.ops.detops.border_align_forward.default
_BACKWARD = torch.ops.detops.border_align_backward.default


class BorderAlignFunction(Function):
    """Autograd function of maxima and their samples, differentiable once in the input."""

    @staticmethod
    def forward(input: Tensor, boxes: Tensor, pool_size: int) -> tuple[Tensor, Tensor]:
        """See :func:`border_align`."""
        output, argmax = _FORWARD(input, boxes, pool_size)
        return output, argmax

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keeps the boxes, the samples and the size of the input."""
        input, boxes, ctx.pool_size = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(boxes, output[1])
        ctx.size = input.shape[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Sends the gradient of each border to the pixels of its largest sample."""
        if grad is None:
            return None, None, None
        return raw(_BACKWARD, grad, *ctx.saved_tensors, ctx.pool_size, *ctx.size), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, input: Tensor, boxes: Tensor, pool_size: int
    ) -> tuple[tuple[Tensor, Tensor], int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch), fold(boxes, in_dims[1], batch)
        output, argmax = BorderAlignFunction.run(*folded, pool_size)
        return (unfold(output, batch), unfold(argmax, batch)), 0


_border_align = derivative(
    "border_align", lambda *arguments: BorderAlignFunction.run(*arguments)[0]
)


@torch.fx.wrap
def border_align(input: Tensor, boxes: Tensor, pool_size: int = 10) -> Tensor:
    """Returns the largest feature along each border of each box.

    See "BorderDet" (Qiu et al., 2020), section 3.2. Each border has ``pool_size + 1`` bilinear
    samples from corner to corner, both included. The samples of the top and left borders begin at
    (x1, y1), those of the bottom and right borders at (x2, y2). A sample outside
    ``[-1, H] x [-1, W]`` counts as 0. Between that limit and the border of the feature map, it has
    the value at the border. NaN samples are skipped. If no sample exceeds minus infinity, the first
    one on the feature map is taken. Of equal samples, the first gets the gradient. A sample outside
    the feature map has no gradient and comes last. NaN and infinite boxes give zeros. Coordinates
    use at least float32, whatever the dtype of ``input``. Boxes may have another dtype.
    Differentiable once, in ``input``.

    Args:
        input: ``[N, 4 C, H, W]``: C channels each for the top, left, bottom and right borders.
        boxes: ``[N, K, 4]`` as (x1, y1, x2, y2) in pixels of ``input``, K boxes per image.
        pool_size: steps from corner to corner, at most 4096.

    Returns:
        ``[N, C, K, 4]`` in the dtype of ``input``: top, left, bottom and right.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; a ``pool_size`` out of range.

    Example:
        >>> ramp = torch.arange(8.0).expand(1, 4, 8, 8)
        >>> border_align(ramp, torch.tensor([[[2.0, 3, 6.5, 5]]])).flatten().tolist()
        [6.5, 2.0, 6.5, 6.5]
    """
    return _border_align(input, boxes, pool_size)


class BorderAlign(PoolingModule):
    """See :func:`border_align`.

    Example:
        >>> pool = BorderAlign(pool_size=10)
        >>> boxes = torch.tensor([[[2.0, 2, 8, 8], [5, 5, 25, 15]]])
        >>> pool(torch.randn(1, 4 * 16, 20, 30), boxes).shape
        torch.Size([1, 16, 2, 4])
    """

    def __init__(self, pool_size: int) -> None:
        super().__init__()
        self.pool_size = pool_size

    def forward(self, input: Tensor, boxes: Tensor) -> Tensor:
        """Pools ``[N, 4 C, H, W]`` and ``[N, K, 4]`` to ``[N, C, K, 4]``."""
        return border_align(input, boxes, self.pool_size)
