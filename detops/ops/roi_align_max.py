"""RoIAlign by maxima."""

from typing import Any

import torch
import torch.fx
from torch import Tensor

from ..registration import derivative
from ._shared import (
    Function,
    Pair,
    as_pair,
    as_rois,
    fold,
    fold_boxes,
    in_format,
    memory_format,
    raw,
    unfold,
)
from .roi_align import RoIAlign

_FORWARD = torch.ops.detops.roi_align_max_forward.default
_BACKWARD = torch.ops.detops.roi_align_max_backward.default
_Pooling = tuple[float, int, int, int, bool]


class RoIAlignMaxFunction(Function):
    """Autograd function of maxima and their positions, differentiable once in the input."""

    @staticmethod
    def forward(input: Tensor, boxes: Tensor, pooling: _Pooling) -> tuple[Tensor, Tensor, Tensor]:
        """See :func:`roi_align_max`."""
        output, argmax_y, argmax_x = _FORWARD(input, boxes, *pooling)
        return output, argmax_y, argmax_x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keeps the boxes, the positions of the maxima, and the size and layout of the input."""
        input, boxes, pooling = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(boxes, *output[1:])
        ctx.settings = pooling, input.shape, memory_format(input)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        """Sends the gradient of each bin to the pixels of its largest sample."""
        if grad is None:
            return None, None, None
        pooling, size, layout = ctx.settings
        scale, height, width, *rest = pooling
        grad = in_format(grad, layout)
        arguments = (grad, *ctx.saved_tensors, scale, height, width, *size, *rest)
        return raw(_BACKWARD, *arguments), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, input: Tensor, boxes: Tensor, pooling: _Pooling
    ) -> tuple[tuple[Tensor, Tensor, Tensor], int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        output, y, x = RoIAlignMaxFunction.run(folded, boxes, pooling)
        return (unfold(output, batch), unfold(y, batch), unfold(x, batch)), 0


_roi_align_max = derivative(
    "roi_align_max",
    lambda input, boxes, *pooling: RoIAlignMaxFunction.run(input, boxes, pooling)[0],
)


@torch.fx.wrap
def roi_align_max(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Pools each box into a grid of bins by taking the largest bilinear sample of each.

    The samples are those of :func:`roi_align`. Its paper names both the maximum and the mean ("Mask
    R-CNN", He et al., 2017, section 3). A sample outside ``[-1, H] x [-1, W]`` counts as 0. Between
    that limit and the border, it has the value at the border. NaN samples are skipped. If no sample
    exceeds minus infinity, the first one on the feature map is taken. Of equal samples, the first
    in reading order gets the gradient. A sample outside the feature map has no gradient and comes
    last. A bin without samples is 0: those of NaN, infinite and, with ``aligned``, inverted boxes
    under adaptive sampling. Coordinates use at least float32, whatever the dtype of ``input``.
    Boxes may have another dtype. Differentiable once, in ``input``.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis, at most 64; if not positive, about one per pixel.
        aligned: shifts boxes by half a pixel to match pixel centres. Otherwise, as first published,
            boxes are not shifted and at least one pixel wide.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; on the CPU, a batch
            index out of range (on CUDA such a box gives zeros).

    Example:
        >>> ramp, box = torch.arange(8.0).expand(1, 1, 8, 8), torch.tensor([[0.0, 2, 2, 6, 6]])
        >>> roi_align_max(ramp, box, 2, sampling_ratio=2)[0, 0, 0].tolist()
        [3.5, 5.5]
    """
    height, width = as_pair(output_size)
    rois = as_rois("roi_align_max", boxes)
    return _roi_align_max(input, rois, spatial_scale, height, width, sampling_ratio, aligned)


class RoIAlignMax(RoIAlign):
    """See :func:`roi_align_max`; its arguments are those of :class:`RoIAlign`.

    Example:
        >>> pool = RoIAlignMax(7, spatial_scale=0.25, sampling_ratio=2)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[8.0, 8, 88, 64]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return roi_align_max(
            input, rois, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned
        )
