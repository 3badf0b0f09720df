"""RoIAlign."""

import torch
import torch.fx
from torch import Tensor

from ._linear_pooling import linear_pooling
from ._shared import Pair, PoolingModule, as_pair, as_rois

_roi_align = linear_pooling("roi_align")


@torch.fx.wrap
def roi_align(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    aligned: bool = False,
) -> Tensor:
    """Pools each box into a grid of bins by averaging bilinear samples.

    See "Mask R-CNN" (He et al., 2017), section 3. A sample outside ``[-1, H] x [-1, W]`` counts as
    0. Between that limit and the border, it has the value at the border. NaN, infinite and (with
    ``aligned``) inverted boxes under adaptive sampling give zeros. Coordinates and sums use at
    least float32, whatever the dtype of ``input``. Boxes may have another dtype.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[K, 5]`` as (batch index, x1, y1, x2, y2), or a list of N tensors ``[L, 4]``.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis; if not positive, about one per pixel.
        aligned: shifts boxes by half a pixel to match pixel centres. Otherwise, as first published,
            boxes are not shifted and at least one pixel wide.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; on the CPU, a batch
            index out of range (on CUDA such a box gives zeros).

    Example:
        >>> rows = torch.arange(8.0).view(1, 1, 8, 1).expand(1, 1, 8, 8)
        >>> boxes = [torch.tensor([[0.0, 0, 32, 32]])]
        >>> roi_align(rows, boxes, output_size=2, spatial_scale=0.25, aligned=True)
        tensor([[[[1.5000, 1.5000],
                  [5.5000, 5.5000]]]])
    """
    height, width = as_pair(output_size)
    rois = as_rois("roi_align", boxes)
    return _roi_align(input, rois, spatial_scale, height, width, sampling_ratio, aligned)


class RoIAlign(PoolingModule):
    """See :func:`roi_align`.

    Example:
        >>> pool = RoIAlign(7, spatial_scale=0.25, sampling_ratio=2)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[8.0, 8, 88, 64]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(
        self,
        output_size: Pair,
        spatial_scale: float,
        sampling_ratio: int,
        aligned: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.aligned = aligned

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return roi_align(
            input,
            rois,
            self.output_size,
            self.spatial_scale,
            self.sampling_ratio,
            self.aligned,
        )
