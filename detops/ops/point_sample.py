"""Bilinear sampling at points."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, fold, raw, unfold


class PointSampleFunction(Function):
    """Autograd function, differentiable once in input and points."""

    @staticmethod
    def forward(input: Tensor, points: Tensor) -> Tensor:
        """See :func:`point_sample`."""
        return _C.point_sample_forward(input, points)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Computes the gradients that are needed, in one call."""
        needs_grad = ctx.needs_input_grad
        grads = raw(_C.point_sample_backward, grad, *ctx.saved_tensors, *needs_grad)
        return grads[0] if needs_grad[0] else None, grads[1] if needs_grad[1] else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], input: Tensor, points: Tensor
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        folded = (fold(x, dim, batch) for x, dim in zip((input, points), in_dims, strict=True))
        return unfold(PointSampleFunction.run(*folded), batch), 0


_point_sample = derivative("point_sample", PointSampleFunction.run)


@torch.fx.wrap
def point_sample(input: Tensor, points: Tensor) -> Tensor:
    """Samples the feature map of each image bilinearly at the image's points.

    See "PointRend" (Kirillov et al., 2020), section 3.1. Mask2Former and MaskFormer also compute
    their losses at such points. The result equals ``grid_sample(align_corners=False)`` at
    ``2 * points - 1``: a feature map is zero outside its border. A NaN or infinite point counts as
    outside, whatever the feature map contains. Coordinates and sums use at least float32, whatever
    the dtype of ``input``. Points may have another dtype. Differentiable once.

    Args:
        input: ``[N, C, H, W]``.
        points: ``[N, P, 2]`` as (x, y), from 0 at the outer edge of the first pixel to 1 at the
            outer edge of the last.

    Returns:
        ``[N, C, P]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices.

    Example:
        >>> ramp = torch.arange(4.0).expand(1, 1, 4, 4)
        >>> point_sample(ramp, torch.tensor([[[0.5, 0.5], [0.125, 0.5]]]))
        tensor([[[1.5000, 0.0000]]])
    """
    return _point_sample(input, points)
