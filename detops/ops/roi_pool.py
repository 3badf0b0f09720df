"""RoI pooling."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..registration import derivative
from ._shared import (
    Function,
    Pair,
    PoolingModule,
    as_pair,
    as_rois,
    fold,
    fold_boxes,
    in_format,
    memory_format,
    unfold,
)

_FORWARD = torch.ops.detops.roi_pool_forward.default
_BACKWARD = torch.ops.detops.roi_pool_backward.default


class RoIPoolFunction(Function):
    """Autograd function of maxima and their positions. Boxes get no gradient."""

    @staticmethod
    def forward(
        input: Tensor, boxes: Tensor, pooling: tuple[float, int, int]
    ) -> tuple[Tensor, Tensor]:
        """See :func:`roi_pool`."""
        output, argmax = _FORWARD(input, boxes, *pooling)
        return output, argmax

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keeps the boxes, the positions of the maxima, and the size and layout of the input."""
        input, boxes, pooling = inputs
        argmax = output[1]
        ctx.mark_non_differentiable(argmax)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(boxes, argmax)
        ctx.settings = pooling, input.shape, memory_format(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Sends the gradient of each bin to its largest pixel."""
        if grad is None:
            return None, None, None
        boxes, argmax = ctx.saved_tensors
        pooling, size, layout = ctx.settings
        grad = in_format(grad, layout)
        return RoIPoolBackwardFunction.run(grad, boxes, argmax, pooling, size), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, input: Tensor, boxes: Tensor, pooling: tuple
    ) -> tuple[tuple[Tensor, Tensor], int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        output, argmax = RoIPoolFunction.run(folded, boxes, pooling)
        return (unfold(output, batch), unfold(argmax, batch)), 0


class RoIPoolBackwardFunction(Function):
    """Autograd function, linear in ``grad`` for fixed positions of the maxima."""

    @staticmethod
    def forward(
        grad: Tensor,
        boxes: Tensor,
        argmax: Tensor,
        pooling: tuple[float, int, int],
        size: tuple[int, int, int, int],
    ) -> Tensor:
        """Scatters ``grad`` into a feature map of the given size."""
        # The op reads dtype and layout from its input; here the gradient has the same.
        grad_input: Tensor = _BACKWARD(grad, grad, boxes, argmax, *pooling, *size)
        return grad_input

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes and the positions of the maxima."""
        _, boxes, argmax, _, _ = inputs
        ctx.save_for_backward(boxes, argmax)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Reads the gradient of each bin at its largest pixel (double backward)."""
        boxes, argmax = ctx.saved_tensors
        images, channels, _, width = grad.shape
        if images == 0:  # there are no RoIs either
            return grad.new_zeros(argmax.shape), None, None, None, None
        pixel = argmax.clamp(min=0).long()
        image = boxes[:, 0].nan_to_num().long().clamp(0, images - 1).view(-1, 1, 1, 1)
        channel = torch.arange(channels, device=grad.device).view(-1, 1, 1)
        gathered = grad[image, channel, pixel // width, pixel % width]
        return torch.where(argmax < 0, 0, gathered), None, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        grad: Tensor,
        boxes: Tensor,
        argmax: Tensor,
        pooling: tuple,
        size: tuple,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch, images = info.batch_size, size[0]
        boxes = fold_boxes(boxes, in_dims[1], batch, images)
        grad, argmax = fold(grad, in_dims[0], batch), fold(argmax, in_dims[2], batch)
        size = (batch * images, *size[1:])
        grad_input = RoIPoolBackwardFunction.run(grad, boxes, argmax, pooling, size)
        return unfold(grad_input, batch), 0


_roi_pool = derivative(
    "roi_pool",
    lambda input, boxes, *pooling: RoIPoolFunction.run(input, boxes, pooling)[0],
    raw=lambda *args: _FORWARD._op(*args)[0],
)


@torch.fx.wrap
def roi_pool(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
) -> Tensor:
    """Pools each box into a grid of bins by taking the largest pixel of each.

    See "Fast R-CNN" (Girshick, 2015), section 2.1. Corners are rounded to pixels, halves away from
    zero, and belong to the box. A box is at least one pixel wide. A bin reads every pixel that it
    touches. A bin without a pixel is 0, and so are those of NaN and infinite boxes. NaN pixels are
    skipped. If no pixel exceeds minus infinity, the first one is taken. Of equal pixels, the first
    in reading order gets the gradient. Coordinates use at least float32, whatever the dtype of
    ``input``. Boxes may have another dtype.

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
        >>> input = torch.arange(16.0).view(1, 1, 4, 4)
        >>> roi_pool(input, [torch.tensor([[0.0, 0, 3, 3]])], output_size=2)
        tensor([[[[ 5.,  7.],
                  [13., 15.]]]])
    """
    height, width = as_pair(output_size)
    return _roi_pool(input, as_rois("roi_pool", boxes), spatial_scale, height, width)


class RoIPool(PoolingModule):
    """See :func:`roi_pool`.

    Example:
        >>> pool = RoIPool(7, spatial_scale=0.25)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[8.0, 8, 88, 64]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(self, output_size: Pair, spatial_scale: float) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return roi_pool(input, rois, self.output_size, self.spatial_scale)
