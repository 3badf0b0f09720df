"""Overlap of point sets' hulls with polygons."""

from typing import Any

from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, front, raw, undifferentiable

_convex_iou = undifferentiable("convex_iou")


def convex_iou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Intersection over union of every point set's convex hull with every quadrilateral.

    How RepPoints of rotated boxes are matched ("Oriented RepPoints for Aerial Object Detection", Li
    et al., 2022, section 3.3). Computed in float64. A quadrilateral may turn either way and may be
    concave. An overlap without value (0/0, NaN or infinite numbers) is 0. Not differentiable; see
    :func:`convex_giou`.

    Args:
        pointsets: ``[N, 18]``, nine points (x1, y1, ..., x9, y9) in pixels, in any order.
        polygons: ``[K, 8]``, corners (x1, y1, ..., x4, y4) in order.

    Returns:
        ``[N, K]`` in [0, 1]: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, or devices that differ.

    Example:
        >>> points = torch.tensor([[0.0, 0, 2, 0, 2, 2, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
        >>> convex_iou(points, torch.tensor([[0.0, 0, 4, 0, 4, 2, 0, 2]]))
        tensor([[0.5000]])
    """
    return _convex_iou(pointsets, polygons)


class ConvexGIoUFunction(Function):
    """Differentiable in the point sets, once."""

    @staticmethod
    def forward(pointsets: Tensor, polygons: Tensor) -> Tensor:
        """See :func:`convex_giou`."""
        return _C.convex_giou_forward(pointsets, polygons)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """See csrc/math/convex_iou.h."""
        return raw(_C.convex_giou_backward, grad, *ctx.saved_tensors), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, int | None], pointsets: Tensor, polygons: Tensor
    ) -> tuple[Tensor, int]:
        """One call for the pairs of all entries."""
        batch = info.batch_size
        given = zip((pointsets, polygons), in_dims, strict=True)
        folded = (front(x, dim, batch).flatten(0, 1) for x, dim in given)
        return ConvexGIoUFunction.run(*folded).view(batch, -1), 0


_convex_giou = derivative("convex_giou", ConvexGIoUFunction.run)


def convex_giou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Generalized IoU of each point set's convex hull with its quadrilateral.

    "Generalized Intersection over Union" (Rezatofighi et al., 2019), equation 4, with the convex
    hull of both as the enclosing shape; the loss of "Oriented RepPoints" (Li et al., 2022, section
    3.2). Computed in float64. Differentiable once in the point sets: points within a hull have no
    gradient, of equal points the first has it all, and where a side of the hull lies on one of the
    quadrilateral the intersection's is the mean of the one-sided derivatives. There is none for the
    quadrilaterals.
    A ratio of 0 / 0 counts as 0; a number that is NaN or infinite gives NaN, in the gradient too.

    Args:
        pointsets: ``[N, 18]``, nine points (x1, y1, ..., x9, y9) in pixels, in any order.
        polygons: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in order; they may turn either way.

    Returns:
        ``[N]`` in [-1, 1]: float64 if one of the inputs is, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype, or devices that differ.

    Example:
        >>> points = torch.tensor([[0.0, 0, 2, 0, 2, 2, 0, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
        >>> convex_giou(points, torch.tensor([[4.0, 0, 6, 0, 6, 2, 4, 2]]))
        tensor([-0.3333])
    """
    return _convex_giou(pointsets, polygons)
