"""Deformable position-sensitive RoI pooling."""

from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor

from .. import _C
from ..registration import composition, derivative
from ._shared import Function, Pair, PoolingModule, as_pair, as_rois, fold, fold_boxes, raw, unfold


class _Pooling(NamedTuple):
    spatial_scale: float
    output_channels: int
    group_size: int
    height: int
    width: int
    part_size: int
    sample_per_part: int
    trans_std: float


class DeformPSRoIPoolFunction(Function):
    """Autograd function, differentiable in input and offsets. Boxes get no gradient."""

    @staticmethod
    def forward(
        input: Tensor, boxes: Tensor, offset: Tensor | None, pooling: _Pooling
    ) -> tuple[Tensor, Tensor]:
        """See :func:`deform_psroi_pooling`. Also returns the number of samples of each bin."""
        return _C.deform_psroi_pool_forward(input, boxes, offset, *pooling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        """Keeps the tensors."""
        input, boxes, offset, ctx.pooling = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(input, boxes, offset, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, Tensor | None, None]:
        """Computes both gradients in one call."""
        input, boxes, offset, count = ctx.saved_tensors
        p = ctx.pooling
        sizes = (p.spatial_scale, p.group_size, p.part_size, p.sample_per_part, p.trans_std)
        grad_input, grad_offset = raw(
            _C.deform_psroi_pool_backward, grad, input, boxes, offset, count, *sizes
        )
        return grad_input, None, None if offset is None else grad_offset, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        input: Tensor,
        boxes: Tensor,
        offset: Tensor | None,
        pooling: _Pooling,
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = fold(input, in_dims[0], batch)
        boxes = fold_boxes(boxes, in_dims[1], batch, folded.size(0) // batch)
        if offset is not None:
            offset = fold(offset, in_dims[2], batch)
        output, count = DeformPSRoIPoolFunction.run(folded, boxes, offset, pooling)
        return (unfold(output, batch), unfold(count, batch)), (0, 0)


_with_count = derivative(
    "deform_psroi_pool",
    lambda input, boxes, offset, *pooling: DeformPSRoIPoolFunction.run(
        input, boxes, offset, _Pooling(*pooling)
    ),
)
_deform_psroi_pooling = composition("deform_psroi_pooling", lambda *args: _with_count(*args)[0])


@torch.fx.wrap
def deform_psroi_pooling(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    offset: Tensor | None,
    output_size: Pair,
    spatial_scale: float,
    output_channels: int,
    group_size: int = 1,
    part_size: int | None = None,
    sample_per_part: int = 4,
    trans_std: float = 0.0,
    no_trans: bool = False,
) -> Tensor:
    """Pools each box into a grid of bins, each shifted by its own offset.

    See "Deformable Convolutional Networks" (Dai et al., 2017), section 2.2. The arithmetic is that
    of its published kernels. Corners are rounded to whole pixels, both ends included. A RoI is at
    least 0.1 pixels wide. A bin is the mean of ``sample_per_part ** 2`` bilinear samples, without
    those more than half a pixel outside the feature map. A bin without samples is 0, and so are
    those with a NaN or infinite box or offset. With ``group_size`` G > 1, the bins of cell (i, j)
    of a G x G grid read channel ``(c * G + i) * G + j`` for channel c of the result
    (position-sensitive pooling, as in "R-FCN", Dai et al., 2016). Coordinates and sums use at least
    float32, whatever the dtype of ``input``. Boxes and offsets may have other dtypes. The
    modulation of "Deformable ConvNets v2" (Zhu et al., 2019) is a product outside this function.

    Args:
        input: ``[N, output_channels * group_size ** 2, H, W]``, contiguous or channels_last; the
            result has the same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        offset: ``[K, 2 * classes, part_size, part_size]``, x and then y for each class of channels
            (equal parts of ``output_channels``). Multiplied by ``trans_std``, they are fractions of
            the RoI's size. None: no offsets.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        output_channels: channels of the result.
        group_size: cells per side of the grid of position-sensitive channels.
        part_size: cells per side of the grid of offsets; the height of the output by default.
        sample_per_part: samples per bin and axis, at most 64.
        trans_std: factor of the offsets.
        no_trans: ignores the offsets, as if they were None.

    Returns:
        ``[K, output_channels, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; sizes below 1; on the CPU, a batch index out
            of range (on CUDA such a box gives zeros).

    Example:
        >>> columns = torch.arange(8.0).expand(1, 1, 8, 8)
        >>> boxes = [torch.tensor([[1.0, 1, 4, 4]])]
        >>> offset = torch.full((1, 2, 2, 2), 0.5)
        >>> settings = dict(output_size=2, spatial_scale=1.0, output_channels=1)
        >>> deform_psroi_pooling(columns, boxes, None, **settings)
        tensor([[[[1.2500, 3.2500],
                  [1.2500, 3.2500]]]])
        >>> # By half of trans_std of the 4 pixels that the box is wide:
        >>> deform_psroi_pooling(columns, boxes, offset, **settings, trans_std=0.5)
        tensor([[[[2.2500, 4.2500],
                  [2.2500, 4.2500]]]])
    """
    height, width = as_pair(output_size)
    part = height if part_size is None else part_size
    return _deform_psroi_pooling(
        input,
        as_rois("deform_psroi_pooling", boxes),
        None if no_trans else offset,
        spatial_scale,
        output_channels,
        group_size,
        height,
        width,
        part,
        sample_per_part,
        trans_std,
    )


class DeformPSRoIPooling(PoolingModule):
    """See :func:`deform_psroi_pooling`.

    Example:
        >>> pool = DeformPSRoIPooling(7, spatial_scale=0.25, output_channels=16, trans_std=0.1)
        >>> boxes = [torch.tensor([[8.0, 8, 88, 64]])]
        >>> pool(torch.randn(1, 16, 50, 84), boxes, torch.zeros(1, 2, 7, 7)).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(
        self,
        output_size: Pair,
        spatial_scale: float,
        output_channels: int,
        group_size: int = 1,
        part_size: int | None = None,
        sample_per_part: int = 4,
        trans_std: float = 0.0,
        no_trans: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.output_channels = output_channels
        self.group_size = group_size
        self.part_size = part_size
        self.sample_per_part = sample_per_part
        self.trans_std = trans_std
        self.no_trans = no_trans

    def forward(
        self, input: Tensor, rois: Tensor | list[Tensor], offset: Tensor | None = None
    ) -> Tensor:
        """Pools ``[N, C, H, W]``, boxes and offsets to ``[K, output_channels, height, width]``."""
        return deform_psroi_pooling(
            input,
            rois,
            offset,
            self.output_size,
            self.spatial_scale,
            self.output_channels,
            self.group_size,
            self.part_size,
            self.sample_per_part,
            self.trans_std,
            self.no_trans,
        )
