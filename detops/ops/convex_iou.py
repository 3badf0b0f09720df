"""Overlap of the convex hulls of point sets with polygons."""

from typing import Any

from torch import Tensor

from .. import _C
from ..registration import derivative
from ._shared import Function, front, raw, undifferentiable

_convex_iou = undifferentiable("convex_iou")


def convex_iou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Computes the IoU of every point set's convex hull with every quadrilateral.

    "Oriented RepPoints for Aerial Object Detection" (Li et al., 2022), section 3.3, matches the
    RepPoints of rotated boxes by this overlap. It is computed in float64. Corners may run in either
    direction, and a quadrilateral may be concave. An undefined overlap (0/0, NaN or infinite
    coordinates) is 0. Not differentiable; see :func:`convex_giou`.

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
    """Autograd function, differentiable once in the point sets."""

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
        """Makes one call over the pairs of all batch entries."""
        batch = info.batch_size
        arguments = zip((pointsets, polygons), in_dims, strict=True)
        folded = (front(x, dim, batch).flatten(0, 1) for x, dim in arguments)
        return ConvexGIoUFunction.run(*folded).view(batch, -1), 0


_convex_giou = derivative("convex_giou", ConvexGIoUFunction.run)


def convex_giou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Computes the generalized IoU of each point set's convex hull with its quadrilateral.

    See "Generalized Intersection over Union" (Rezatofighi et al., 2019), equation 4; the enclosing
    shape is the convex hull of both. "Oriented RepPoints" (Li et al., 2022, section 3.2) uses it as
    a loss. Computed in float64. A ratio of 0/0 counts as 0. A NaN or infinite coordinate gives NaN,
    also in the gradient.

    Differentiable once in the point sets; the quadrilaterals get no gradient. Points inside a hull
    have no gradient, and the first of equal points gets all of it. Where a side of the hull lies on
    a side of the quadrilateral, the derivative of the intersection is the mean of the one-sided
    derivatives.

    Args:
        pointsets: ``[N, 18]``, nine points (x1, y1, ..., x9, y9) in pixels, in any order.
        polygons: ``[N, 8]``, corners (x1, y1, ..., x4, y4) in order, in either direction.

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
