"""Smallest rectangles around sets of points."""

from torch import Tensor

from ._shared import undifferentiable

_min_area_polygons = undifferentiable("min_area_polygons")


def min_area_polygons(pointsets: Tensor) -> Tensor:
    """The rectangle of least area around each set of points, turned as need be.

    One of its sides lies along a side of the convex hull ("Determining the minimum-area encasing
    rectangle for an arbitrary closed curve", Freeman and Shapira, 1975). With u a direction from 0
    up to 90 degrees along which it lies and v that across it, its corners come in mmcv's order:
    largest u and smallest v, smallest u and smallest v, smallest u and largest v, largest u and
    largest v. Of rectangles of one area (to 1e-12 of it), which all sides of an acute triangle
    have, it is that of the first side, counter-clockwise (y up) from the lowest point. A number
    that is NaN or infinite makes the whole rectangle NaN. Computed in float64; not differentiable.

    Args:
        pointsets: ``[N, 18]``, nine points (x1, y1, ..., x9, y9) in pixels, in any order.

    Returns:
        ``[N, 8]``, corners (x1, y1, ..., x4, y4): float64 for float64 sets, otherwise float32.

    Raises:
        RuntimeError: wrong shape or dtype.

    Example:
        >>> points = torch.tensor([[1.0, 1, 3, 1, 3, 2, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]])
        >>> min_area_polygons(points)
        tensor([[3., 1., 1., 1., 1., 2., 3., 2.]])
    """
    return _min_area_polygons(pointsets)
