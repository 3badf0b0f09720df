"""Position-sensitive RoIAlign."""

import torch
import torch.fx
from torch import Tensor

from ._linear_pooling import linear_pooling
from ._shared import Pair, PoolingModule, as_pair, as_rois

_ps_roi_align = linear_pooling("ps_roi_align")


@torch.fx.wrap
def ps_roi_align(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
) -> Tensor:
    """Pools each box into a grid of bins like RoIAlign, each bin from its own channel.

    See "R-FCN" (Dai et al., 2016), section 2; the bilinear samples are those of "Mask R-CNN" (He et
    al., 2017). Bin ``(i, j)`` of channel ``c`` is that of :func:`roi_align` with ``aligned=True``
    on channel ``(c * height + i) * width + j`` of the input. NaN and infinite boxes, and inverted
    ones with adaptive sampling, give zeros. Coordinates and sums use at least float32, whatever the
    dtype of ``input``. Boxes may have another dtype.

    Args:
        input: ``[N, C * height * width, H, W]``, contiguous or channels_last; the result has the
            same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis; if not positive, about one per pixel.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; a number of channels that is not a multiple
            of ``height * width``; an output size below 1; on the CPU, a batch index out of range
            (on CUDA such a box gives zeros).

    Example:
        >>> input = torch.arange(4.0).view(1, 4, 1, 1).expand(1, 4, 8, 8)  # channel c is full of c
        >>> ps_roi_align(input, [torch.tensor([[1.0, 1, 5, 5]])], output_size=2)
        tensor([[[[0., 1.],
                  [2., 3.]]]])
    """
    height, width = as_pair(output_size)
    rois = as_rois("ps_roi_align", boxes)
    return _ps_roi_align(input, rois, spatial_scale, height, width, sampling_ratio)


class PSRoIAlign(PoolingModule):
    """See :func:`ps_roi_align`.

    Example:
        >>> pool = PSRoIAlign(7, spatial_scale=0.25, sampling_ratio=2)
        >>> pool(torch.randn(1, 3 * 7 * 7, 50, 84), [torch.tensor([[8.0, 8, 88, 64]])]).shape
        torch.Size([1, 3, 7, 7])
    """

    def __init__(self, output_size: Pair, spatial_scale: float, sampling_ratio: int) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C * height * width, H, W]`` and boxes to ``[K, C, height, width]``."""
        return ps_roi_align(input, rois, self.output_size, self.spatial_scale, self.sampling_ratio)
