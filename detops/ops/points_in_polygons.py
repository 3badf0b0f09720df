"""Tests for points inside polygons."""

from torch import Tensor

from ..registration import dispatcher_op

_points_in_polygons = dispatcher_op("points_in_polygons")


def points_in_polygons(points: Tensor, polygons: Tensor) -> Tensor:
    """Returns whether each point lies inside each quadrilateral.

    The test is the even-odd rule in float64. Corners may run in either direction, and a
    quadrilateral may be concave. If sides cross, both triangles are inside. A point exactly on a
    side or a corner is outside, and so is a point with a NaN. A quadrilateral with a coordinate
    that is not finite contains nothing.

    Args:
        points: ``[P, 2]`` as (x, y) in pixels.
        polygons: ``[M, 8]``, corners (x1, y1, ..., x4, y4) in order.

    Returns:
        bool ``[P, M]``.

    Raises:
        RuntimeError: wrong shape or dtype, or devices that differ.

    Example:
        >>> square = torch.tensor([[0.0, 0, 2, 0, 2, 2, 0, 2]])
        >>> points_in_polygons(torch.tensor([[1.0, 1], [3, 1]]), square)
        tensor([[ True],
                [False]])
    """
    return _points_in_polygons(points, polygons)
