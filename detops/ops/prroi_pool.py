"""Precise RoI pooling."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, Pair, PoolingModule, as_pair, as_rois, fold, fold_boxes, raw, unfold

_Pooling = tuple[float, int, int]


class PrRoIPoolFunction(Function):
    """Autograd function, differentiable once in input and boxes."""

    @staticmethod
    def forward(input: Tensor, boxes: Tensor, pooling: _Pooling) -> Tensor:
        """See :func:`prroi_pool`."""
        return _C.prroi_pool_forward(input, boxes, *pooling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs[:2])
        ctx.pooling = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Computes both gradients in one call."""
        input, boxes = ctx.saved_tensors
        needs_grad = ctx.needs_input_grad[:2]
        grads = raw(_C.prroi_pool_backward, grad, input, boxes, ctx.pooling[0], *needs_grad)
        return grads[0] if needs_grad[0] else None, grads[1] if needs_grad[1] else None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, input: Tensor, boxes: Tensor, pooling: _Pooling
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        return unfold(PrRoIPoolFunction.run(folded, boxes, pooling), batch), 0


_prroi_pool = derivative(
    "prroi_pool", lambda input, boxes, *pooling: PrRoIPoolFunction.run(input, boxes, pooling)
)


@torch.fx.wrap
def prroi_pool(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Pools each box into a grid of bins by averaging the bilinear surface over each bin.

    See "Acquisition of Localization Confidence for Accurate Object Detection" (Jiang et al., 2018),
    section 3.3 (Precise RoI pooling). The mean is the exact integral over the area of the bin and
    not a sum of samples, so it has a continuous gradient in the corners of the box. Pixel i is at
    the coordinate i, without a shift by half a pixel. Outside the feature map, the surface falls to
    0 within one pixel. Empty, inverted, NaN and infinite boxes give zeros. Coordinates and sums use
    at least float32, whatever the dtype of ``input``. Boxes may have another dtype. Differentiable
    once, in ``input`` and ``boxes``; a batch index has no gradient.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; on the CPU, a batch
            index out of range (on CUDA such a box gives zeros).

    Example:
        >>> ramp, box = torch.arange(8.0).expand(1, 1, 8, 8), torch.tensor([[0.0, 2, 2, 5, 6]])
        >>> prroi_pool(ramp, box.requires_grad_(), 1).item()
        3.5
    """
    height, width = as_pair(output_size)
    return _prroi_pool(input, as_rois("prroi_pool", boxes), spatial_scale, height, width)


class PrRoIPool(PoolingModule):
    """See :func:`prroi_pool`.

    Example:
        >>> pool = PrRoIPool(7, spatial_scale=0.25)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[8.0, 8, 88, 64]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(self, output_size: Pair, spatial_scale: float = 1.0) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return prroi_pool(input, rois, self.output_size, self.spatial_scale)
