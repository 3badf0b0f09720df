"""Deformable RoI pooling."""

from typing import Any, NamedTuple

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, Pair, PoolingModule, as_pair, as_rois, fold, fold_boxes, raw, unfold


class _Pooling(NamedTuple):
    spatial_scale: float
    height: int
    width: int
    sampling_ratio: int
    gamma: float


class DeformRoIPoolFunction(Function):
    """Autograd function, differentiable once in input and offsets. Boxes get no gradient."""

    @staticmethod
    def forward(input: Tensor, boxes: Tensor, offset: Tensor | None, pooling: _Pooling) -> Tensor:
        """See :func:`deform_roi_pool`."""
        return _C.deform_roi_pool_forward(input, boxes, offset, *pooling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs[:3])
        ctx.pooling = inputs[3]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        """Computes both gradients in one call."""
        input, boxes, offset = ctx.saved_tensors
        p, needs_grad = ctx.pooling, ctx.needs_input_grad
        tracked_offset = offset if needs_grad[2] or offset is None else offset.detach()
        grad_input, grad_offset = raw(
            _C.deform_roi_pool_backward,
            *(
                grad,
                input,
                boxes,
                tracked_offset,
                p.spatial_scale,
                p.sampling_ratio,
                p.gamma,
                needs_grad[0],
            ),
        )
        return (
            grad_input if needs_grad[0] else None,
            None,
            grad_offset if needs_grad[2] else None,
            None,
        )

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        input: Tensor,
        boxes: Tensor,
        offset: Tensor | None,
        pooling: _Pooling,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        if offset is not None:
            offset = fold(offset, in_dims[2], batch)
        return unfold(DeformRoIPoolFunction.run(folded, boxes, offset, pooling), batch), 0


_deform_roi_pool = derivative(
    "deform_roi_pool",
    lambda input, boxes, offset, *pooling: DeformRoIPoolFunction.run(
        input, boxes, offset, _Pooling(*pooling)
    ),
)


@torch.fx.wrap
def deform_roi_pool(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    offset: Tensor | None,
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = 0,
    gamma: float = 0.1,
) -> Tensor:
    """Pools like RoIAlign, with each bin moved by a learned offset.

    See "Deformable Convolutional Networks" (Dai et al., 2017), section 2.2; the samples are those
    of "Mask R-CNN" (He et al., 2017). Pixel centres match, as with ``aligned`` in
    :func:`roi_align`. Without offsets, the two ops are the same. A sample outside
    ``[-1, H] x [-1, W]`` counts as 0. Between that limit and the border, it has the value at the
    border and a slope of 0. NaN, infinite and, with adaptive sampling, inverted bins give zeros.
    Coordinates and sums use at least float32, whatever the dtype of ``input``. Boxes and offsets
    may have other dtypes. The modulation of "Deformable ConvNets v2" (Zhu et al., 2019) is a
    product with the result. Differentiable once.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        offset: ``[K, 2, height, width]``, x and then y of each bin. Multiplied by ``gamma``, they
            are fractions of the RoI's size. None: no offsets.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis, at most 64; if not positive, about one per pixel.
        gamma: factor of the offsets.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; on the CPU, a batch
            index out of range (on CUDA such a box gives zeros).

    Example:
        >>> ramp, box = torch.arange(8.0).expand(1, 1, 8, 8), torch.tensor([[0.0, 2, 2, 4, 4]])
        >>> half = torch.tensor([0.5, 0]).view(1, 2, 1, 1)
        >>> deform_roi_pool(ramp, box, half, 1, gamma=1.0).item()
        3.5
    """
    height, width = as_pair(output_size)
    rois = as_rois("deform_roi_pool", boxes)
    return _deform_roi_pool(
        input, rois, offset, spatial_scale, height, width, sampling_ratio, gamma
    )


class DeformRoIPool(PoolingModule):
    """See :func:`deform_roi_pool`.

    Example:
        >>> pool = DeformRoIPool(7, spatial_scale=0.25)
        >>> boxes = [torch.tensor([[8.0, 8, 88, 64]])]
        >>> pool(torch.randn(1, 16, 50, 84), boxes, torch.zeros(1, 2, 7, 7)).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(
        self,
        output_size: Pair,
        spatial_scale: float = 1.0,
        sampling_ratio: int = 0,
        gamma: float = 0.1,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.gamma = gamma

    def forward(
        self, input: Tensor, rois: Tensor | list[Tensor], offset: Tensor | None = None
    ) -> Tensor:
        """Pools ``[N, C, H, W]``, boxes and offsets to ``[K, C, height, width]``."""
        return deform_roi_pool(
            input,
            rois,
            offset,
            self.output_size,
            self.spatial_scale,
            self.sampling_ratio,
            self.gamma,
        )
