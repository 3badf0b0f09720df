"""RoIAlign of rotated boxes."""

import torch
import torch.fx
from torch import Tensor

from ._linear_pooling import linear_pooling
from ._shared import Pair, PoolingModule, as_pair, as_rois

_roi_align_rotated = linear_pooling("roi_align_rotated")


@torch.fx.wrap
def roi_align_rotated(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
) -> Tensor:
    """Pools each rotated box into a grid of bins, rotated with the box, by averaging samples.

    This is RoIAlign ("Mask R-CNN", He et al., 2017, section 3) on a grid that is rotated about the
    centre of the box. Pixel centres match: an angle of 0 gives :func:`roi_align` with
    ``aligned=True``. Bins run along the box: the first axis of the result along its side h, the
    second along w. A sample outside ``[-1, H] x [-1, W]`` counts as 0. Between that limit and the
    border, it has the value at the border. NaN and infinite boxes, and under adaptive sampling
    those of a negative or zero size, have no samples and give zeros. With a fixed
    ``sampling_ratio``, a negative size mirrors the box. Coordinates and sums use at least float32,
    whatever the dtype of ``input``. Boxes may have another dtype.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[K, 6]`` as (batch index, cx, cy, w, h, angle), or a list of N tensors ``[L, 5]``.
            Centre and size in pixels, the angle in degrees, counter-clockwise as seen in the image:
            the side w runs along (cos, -sin), the side h along (sin, cos).
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis, at most 64; if not positive, about one per pixel.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; on the CPU, a batch
            index out of range (on CUDA such a box gives zeros).

    Example:
        >>> columns = torch.arange(8.0).expand(1, 1, 8, 8)
        >>> roi_align_rotated(columns, [torch.tensor([[4.0, 4, 4, 4, 90]])], output_size=2)
        tensor([[[[2.5000, 2.5000],
                  [4.5000, 4.5000]]]])
    """
    height, width = as_pair(output_size)
    rois = as_rois("roi_align_rotated", boxes, columns=5)
    return _roi_align_rotated(input, rois, spatial_scale, height, width, sampling_ratio)


class RoIAlignRotated(PoolingModule):
    """See :func:`roi_align_rotated`.

    Example:
        >>> pool = RoIAlignRotated(7, spatial_scale=0.25, sampling_ratio=2)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[80.0, 64, 60, 20, 30]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(self, output_size: Pair, spatial_scale: float, sampling_ratio: int) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return roi_align_rotated(
            input, rois, self.output_size, self.spatial_scale, self.sampling_ratio
        )
