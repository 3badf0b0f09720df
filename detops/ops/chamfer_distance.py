"""Distances between sets of points."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, fold, raw, unfold


class ChamferDistanceFunction(Function):
    """Autograd function, differentiable once in both sets."""

    @staticmethod
    def forward(points1: Tensor, points2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """See :func:`chamfer_distance`."""
        return _C.chamfer_distance_forward(points1, points2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        """Keeps the points and the indices of the nearest ones."""
        ctx.mark_non_differentiable(*output[2:])
        ctx.save_for_backward(*inputs, *output[2:])

    @staticmethod
    def backward(ctx: Any, grad1: Tensor, grad2: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        """Sums the gradient of each point, by one owner in a fixed order."""
        return raw(_C.chamfer_distance_backward, grad1, grad2, *ctx.saved_tensors)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], points1: Tensor, points2: Tensor
    ) -> tuple[tuple[Tensor, ...], int]:
        """Makes one call over the folded sets."""
        batch = info.batch_size
        folded = (fold(x, dim, batch) for x, dim in zip((points1, points2), in_dims, strict=True))
        outputs = ChamferDistanceFunction.run(*folded)
        return tuple(unfold(x, batch) for x in outputs), 0


_chamfer_distance = derivative("chamfer_distance", ChamferDistanceFunction.run)


@torch.fx.wrap
def chamfer_distance(points1: Tensor, points2: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the squared distance of each point to the nearest point of the other set.

    These are the summands of the Chamfer distance in "A Point Set Generation Network for 3D Object
    Reconstruction from a Single Image" (Fan et al., 2017), section 4.2. "Oriented RepPoints for
    Aerial Object Detection" (Li et al., 2022) compares point sets with them. Of equally near
    points, the first counts. NaN and infinite distances are ignored. A point without any finite
    distance gets an infinite one, the index -1 and no gradient. Differentiable once, with the
    nearest points held fixed.

    Args:
        points1: ``[B, N, 2]``, B sets of points (x, y).
        points2: ``[B, M, 2]``, the set to compare with each of them.

    Returns:
        The squared distances ``[B, N]`` from ``points1`` and ``[B, M]`` from ``points2``, float64
        if one of the inputs is, otherwise float32; and the indices of the nearest points of the
        other set, int64 ``[B, N]`` and ``[B, M]``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices.

    Example:
        >>> square = torch.tensor([[[0.0, 0], [4, 0], [4, 4], [0, 4]]])
        >>> dist1, dist2, idx1, idx2 = chamfer_distance(square, torch.tensor([[[1.0, 0], [4, 4]]]))
        >>> dist1, idx1
        (tensor([[ 1.,  9.,  0., 16.]]), tensor([[0, 0, 1, 1]]))
        >>> dist2, idx2
        (tensor([[1., 0.]]), tensor([[0, 2]]))
    """
    return _chamfer_distance(points1, points2)
