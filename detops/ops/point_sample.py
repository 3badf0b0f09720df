"""Bilinear samples at single points."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, fold, raw, unfold


class PointSampleFunction(Function):
    """Differentiable once in the input and the points."""

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
        """Both gradients in one call, or the one that is wanted."""
        wanted = ctx.needs_input_grad
        gradients = raw(_C.point_sample_backward, grad, *ctx.saved_tensors, *wanted)
        return gradients[0] if wanted[0] else None, gradients[1] if wanted[1] else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], input: Tensor, points: Tensor
    ) -> tuple[Tensor, int]:
        """One call over the folded images."""
        batch = info.batch_size
        folded = (fold(x, dim, batch) for x, dim in zip((input, points), in_dims, strict=True))
        return unfold(PointSampleFunction.run(*folded), batch), 0


_point_sample = derivative("point_sample", PointSampleFunction.run)


@torch.fx.wrap
def point_sample(input: Tensor, points: Tensor) -> Tensor:
    """Samples each map at points of its own, bilinearly.

    "PointRend" (Kirillov et al., 2020), section 3.1; also how Mask2Former and MaskFormer take
    their losses at points. The same as ``grid_sample(align_corners=False)`` at ``2 * points - 1``:
    a map continues with zeros beyond its border. A point that is NaN or infinite counts as beyond,
    whatever the map holds. Coordinates and sums are never below float32, whatever the dtype of
    ``input``; points may have another dtype. Differentiable once.

    Args:
        input: ``[N, C, H, W]``.
        points: ``[N, P, 2]`` as (x, y), from 0 at the outer edge of the first pixel to 1 at that
            of the last.

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
