"""Minimum-area rectangles around point sets."""

from torch import Tensor

from ._shared import undifferentiable

_min_area_polygons = undifferentiable("min_area_polygons")


def min_area_polygons(pointsets: Tensor) -> Tensor:
    """Returns the rotated rectangle of least area around each point set.

    One of its sides lies along a side of the convex hull ("Determining the minimum-area encasing
    rectangle for an arbitrary closed curve", Freeman and Shapira, 1975). Let u be the direction of
    one of its sides, at least 0 and less than 90 degrees, and v the direction perpendicular to it.
    The corners have the order of mmcv: largest u and smallest v, smallest u and v, smallest u and
    largest v, largest u and v. On all sides of an acute triangle, for example, the rectangles have
    the same area (to 1e-12 of it). In this case, the rectangle on the first side is returned,
    counter-clockwise (y up) from the lowest point. A NaN or infinite coordinate makes the whole
    rectangle NaN. Computed in float64; not differentiable.

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
