"""Feature refinement for detectors of rotated boxes."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, fold, in_format, memory_format, unfold


class RotatedFeatureAlignFunction(Function):
    """Autograd function, linear in ``features``. Boxes get no gradient."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(features: Tensor, boxes: Tensor, spatial_scale: float, points: int) -> Tensor:
        """See :func:`rotated_feature_align`."""
        return _C.rotated_feature_align_forward(features, boxes, spatial_scale, points)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes."""
        features, boxes, *ctx.settings = inputs
        ctx.save_for_backward(boxes)
        ctx.layout = memory_format(features)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Applies the transpose of the forward pass."""
        grad = in_format(grad, ctx.layout)
        grad_features = RotatedFeatureAlignBackwardFunction.run(
            grad, *ctx.saved_tensors, *ctx.settings
        )
        return grad_features, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        features: Tensor,
        boxes: Tensor,
        spatial_scale: float,
        points: int,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        folded = (
            fold(x, d, info.batch_size) for x, d in zip((features, boxes), in_dims, strict=False)
        )
        refined = RotatedFeatureAlignFunction.run(*folded, spatial_scale, points)
        return unfold(refined, info.batch_size), 0


class RotatedFeatureAlignBackwardFunction(Function):
    """The transpose of :class:`RotatedFeatureAlignFunction`: its derivative is the forward pass."""

    linear_in = (slice(1),)

    @staticmethod
    def forward(grad: Tensor, boxes: Tensor, spatial_scale: float, points: int) -> Tensor:
        """Returns the gradient of the features."""
        return _C.rotated_feature_align_backward(grad, boxes, spatial_scale, points)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the boxes."""
        _, boxes, *ctx.settings = inputs
        ctx.save_for_backward(boxes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        """Runs the forward pass on the gradient (double backward)."""
        refined = RotatedFeatureAlignFunction.run(grad, *ctx.saved_tensors, *ctx.settings)
        return refined, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, grad: Tensor, boxes: Tensor, spatial_scale: float, points: int
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        folded = (fold(x, d, info.batch_size) for x, d in zip((grad, boxes), in_dims, strict=False))
        grad_features = RotatedFeatureAlignBackwardFunction.run(*folded, spatial_scale, points)
        return unfold(grad_features, info.batch_size), 0


_rotated_feature_align = derivative("rotated_feature_align", RotatedFeatureAlignFunction.run)


@torch.fx.wrap
def rotated_feature_align(
    features: Tensor, boxes: Tensor, spatial_scale: float = 0.125, points: int = 1
) -> Tensor:
    """Adds to each pixel the features sampled at the box that was predicted there.

    This is the reconstruction of features in the feature refinement module of "R3Det: Refined
    Single-Stage Detector with Feature Refinement for Rotating Object" (Yang et al., 2021), section
    3.3. It takes a bilinear sample at the centre of the box and, with 5 points, one at each corner.
    Pixels are at integer coordinates. A sample outside ``[-1, H] x [-1, W]`` or at a NaN position
    counts as 0. Between that limit and the border, it has the value at the border. Coordinates and
    sums use at least float32, whatever the dtype of ``features``. Boxes may have another dtype. The
    op is linear in ``features`` and differentiable in them any number of times. Boxes get no
    gradient.

    Args:
        features: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        boxes: ``[N, H, W, 5]`` as (cx, cy, w, h, angle), the box of each pixel. Centre and size in
            pixels of the image, the angle in degrees, counter-clockwise as seen in the image.
        spatial_scale: pixels of ``features`` per pixel of the boxes.
        points: 1 or 5.

    Returns:
        ``[N, C, H, W]`` in the dtype of ``features``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; another number of points.

    Example:
        >>> ramp = torch.arange(4.0).expand(1, 1, 1, 4)
        >>> boxes = torch.tensor([2.5, 0, 1, 1, 0]).expand(1, 1, 4, 5)
        >>> rotated_feature_align(ramp, boxes, spatial_scale=1.0)[0, 0].tolist()
        [[2.5, 3.5, 4.5, 5.5]]
    """
    return _rotated_feature_align(features, boxes, spatial_scale, points)
