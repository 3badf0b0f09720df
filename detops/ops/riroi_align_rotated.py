"""Rotation-invariant RoIAlign."""

import torch
import torch.fx
from torch import Tensor

from ._linear_pooling import linear_pooling
from ._shared import Pair, PoolingModule, as_pair, as_rois

_riroi_align_rotated = linear_pooling("riroi_align_rotated")


@torch.fx.wrap
def riroi_align_rotated(
    input: Tensor,
    boxes: Tensor | list[Tensor],
    output_size: Pair,
    spatial_scale: float = 1.0,
    sampling_ratio: int = -1,
    num_orientations: int = 8,
    clockwise: bool = False,
) -> Tensor:
    """Pools rotated boxes from oriented features, and aligns the orientations with each box.

    This is RiRoI Align of "ReDet: A Rotation-equivariant Detector for Aerial Object Detection" (Han
    et al., 2021), section 3.3. Channels form groups of ``num_orientations``, one for each
    orientation. The box is pooled as in :func:`roi_align_rotated`. Let ``a + b`` be its angle in
    units of ``360 / num_orientations`` degrees, with integer ``a`` and ``0 <= b < 1``. Then
    orientation ``o`` of the result is ``1 - b`` times the pooled orientation ``o - a`` plus ``b``
    times ``o - a + 1``, cyclically. As in ReDet, the centre of a box is not shifted by half a
    pixel, and a side is at least one pixel of ``input``. NaN and infinite boxes give zeros.
    Coordinates and sums use at least float32, whatever the dtype of ``input``. Boxes may have
    another dtype. The op is linear in ``input`` and differentiable in it any number of times. Boxes
    get no gradient.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout. C is
            a multiple of ``num_orientations``.
        boxes: ``[K, 6]`` as (batch index, cx, cy, w, h, angle), or a list of N tensors ``[L, 5]``.
            Centre and size in pixels, the angle in degrees.
        output_size: number of bins, ``(height, width)`` or one number for both.
        spatial_scale: pixels of ``input`` per pixel of the boxes.
        sampling_ratio: samples per bin and axis, at most 64; if not positive, about one per pixel.
        num_orientations: channels of a group.
        clockwise: rotates the box clockwise by its angle, as seen in the image, instead of
            counter-clockwise; its orientations are the same either way.

    Returns:
        ``[K, C, height, width]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an output size below 1; a number of channels
            that ``num_orientations`` does not divide; on the CPU, a batch index out of range (on
            CUDA such a box gives zeros).

    Example:
        >>> oriented = torch.tensor([10.0, 20, 30, 40]).view(1, 4, 1, 1).expand(1, 4, 8, 8)
        >>> boxes = torch.tensor([[0.0, 4, 4, 2, 2, 90], [0, 4, 4, 2, 2, 45]])
        >>> riroi_align_rotated(oriented, boxes, 1, num_orientations=4)[..., 0, 0].tolist()
        [[40.0, 10.0, 20.0, 30.0], [15.0, 25.0, 35.0, 25.0]]
    """
    height, width = as_pair(output_size)
    rois = as_rois("riroi_align_rotated", boxes, columns=5)
    return _riroi_align_rotated(
        input, rois, spatial_scale, height, width, sampling_ratio, num_orientations, clockwise
    )


class RiRoIAlignRotated(PoolingModule):
    """See :func:`riroi_align_rotated`.

    Example:
        >>> pool = RiRoIAlignRotated(7, spatial_scale=0.25, sampling_ratio=2, num_orientations=8)
        >>> pool(torch.randn(1, 16, 50, 84), [torch.tensor([[80.0, 64, 60, 20, 30]])]).shape
        torch.Size([1, 16, 7, 7])
    """

    def __init__(
        self,
        output_size: Pair,
        spatial_scale: float,
        sampling_ratio: int = -1,
        num_orientations: int = 8,
        clockwise: bool = False,
    ) -> None:
        super().__init__()
        self.output_size = output_size
        self.spatial_scale = spatial_scale
        self.sampling_ratio = sampling_ratio
        self.num_orientations = num_orientations
        self.clockwise = clockwise

    def forward(self, input: Tensor, rois: Tensor | list[Tensor]) -> Tensor:
        """Pools ``[N, C, H, W]`` and boxes to ``[K, C, height, width]``."""
        return riroi_align_rotated(
            input,
            rois,
            self.output_size,
            self.spatial_scale,
            self.sampling_ratio,
            self.num_orientations,
            self.clockwise,
        )
