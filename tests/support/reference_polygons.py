"""Slow, obvious versions of the ops on polygons: the oracles. The x axis points right, y up."""

import math

import torch


def cross(o, a, b):
    return (a[0] - o[0]) * (b[1] - o[1]) - (b[0] - o[0]) * (a[1] - o[1])


def to_points(row):
    """Converts (x1, y1, x2, y2, ...) to pairs."""
    row = row.double().tolist()
    return list(zip(row[::2], row[1::2], strict=True))


def area(corners):
    """Returns the area, positive for counter-clockwise corners."""
    return sum(cross(corners[0], a, b) for a, b in zip(corners[1:], corners[2:], strict=False)) / 2


def hull(points):
    """Wraps points counter-clockwise from the lowest one; of several, from the leftmost."""
    points = sorted(set(points), key=lambda p: (p[1], p[0]))
    if len(points) < 3:
        return points
    corners = [points[0]]
    while True:
        last = corners[-1]
        best = next(p for p in points if p != last)
        for p in points:
            turn = cross(last, best, p)
            if turn < 0 or (turn == 0 and math.dist(last, p) > math.dist(last, best)):
                best = p
        if best == corners[0]:
            return corners
        corners.append(best)


def _clip(polygon, p, q):
    """Returns the part of a polygon on the left of the line from p to q."""
    kept = []
    for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        side_of_a, side_of_b = cross(p, q, a), cross(p, q, b)
        if side_of_a >= 0:
            kept.append(a)
        if side_of_a * side_of_b < 0:
            t = side_of_a / (side_of_a - side_of_b)
            kept.append((a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])))
    return kept


def intersection(polygon, convex):
    """Returns the common area of any polygon and a convex, counter-clockwise one."""
    for p, q in zip(convex, convex[1:] + convex[:1], strict=True):
        polygon = _clip(polygon, p, q)
    return abs(area(polygon)) if len(polygon) > 2 else 0.0


def _areas(pointset, polygon):
    convex_hull, quad = hull(to_points(pointset)), to_points(polygon)
    pointset_area = area(convex_hull) if len(convex_hull) > 2 else 0.0
    intersection_area = intersection(quad, convex_hull) if pointset_area else 0.0
    return (
        intersection_area,
        pointset_area + abs(area(quad)) - intersection_area,
        area(hull(convex_hull + quad)),
    )


def convex_iou(pointsets, polygons):
    """Returns the IoU of all pairs, 0 where undefined."""
    ious = torch.zeros(len(pointsets), len(polygons), dtype=torch.double)
    for i, points in enumerate(pointsets):
        for j, polygon in enumerate(polygons):
            if points.isfinite().all() and polygon.isfinite().all():
                intersection_area, union, _ = _areas(points, polygon)
                ious[i, j] = intersection_area / union if union else 0
    return ious


def convex_giou(pointsets, polygons):
    """Returns the GIoU of matched pairs of finite numbers."""
    found = []
    for points, polygon in zip(pointsets, polygons, strict=True):
        intersection_area, union, enclosing_area = _areas(points, polygon)
        found.append(
            (intersection_area / union if union else 0)
            - ((enclosing_area - union) / enclosing_area if enclosing_area else 0)
        )
    return torch.tensor(found, dtype=torch.double)


def _triangles(quad):
    """Yields counter-clockwise triangles and signs; their signed sum is the quadrilateral."""
    sign = 1 if area(quad) > 0 else -1
    for a, b, c in (quad[:3], (quad[0], *quad[2:])):
        turn = cross(a, b, c)
        yield ([a, b, c] if turn > 0 else [a, c, b]), (sign if turn > 0 else -sign)


def quad_iou(first, second, mode="iou"):
    """Returns the overlap, NaN where undefined."""
    if not (first.isfinite().all() and second.isfinite().all()):
        return math.nan
    a, b = to_points(first), to_points(second)
    intersection_area = 0.0
    for one, sign in _triangles(a):
        for other, its_sign in _triangles(b):
            intersection_area += sign * its_sign * intersection(one, other)
    areas = abs(area(a)), abs(area(b))
    intersection_area = min(max(intersection_area, 0.0), *areas)
    base = sum(areas) - intersection_area if mode == "iou" else areas[0]
    return intersection_area / base if base > 0 else math.nan


def box_iou_quadri(boxes1, boxes2, mode="iou"):
    rows = [[quad_iou(a, b, mode) for b in boxes2] for a in boxes1]
    return torch.tensor(rows, dtype=torch.double).reshape(len(boxes1), len(boxes2))


def min_area(pointset):
    """Returns the least area of a rectangle around the points, aligned with a side of the hull."""
    points = to_points(pointset)
    corners = hull(points)
    smallest = math.inf
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        angle = math.atan2(b[1] - a[1], b[0] - a[0])
        c, s = math.cos(angle), math.sin(angle)
        u = [c * x + s * y for x, y in points]
        v = [c * y - s * x for x, y in points]
        smallest = min(smallest, (max(u) - min(u)) * (max(v) - min(v)))
    return smallest


def contains(polygon, point):
    """Tests whether the sides turn around the point by an odd number of whole turns."""
    if not all(map(math.isfinite, (*point, *(x for corner in polygon for x in corner)))):
        return False
    for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        between = (a[0] - point[0]) * (b[0] - point[0]) + (a[1] - point[1]) * (b[1] - point[1])
        if cross(a, b, point) == 0 and between <= 0:
            return False
    turns = 0.0
    for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        dot = (a[0] - point[0]) * (b[0] - point[0]) + (a[1] - point[1]) * (b[1] - point[1])
        turns += math.atan2(cross(point, a, b), dot)
    return round(turns / (2 * math.pi)) % 2 == 1


def random_quads(generator, count, kind="convex"):
    """Returns quadrilaterals in both directions; `any` has concave and self-crossing ones."""
    centre = torch.rand(count, 1, 2, generator=generator, dtype=torch.double) * 60
    if kind == "any":
        return (
            centre + torch.rand(count, 4, 2, generator=generator, dtype=torch.double) * 30
        ).view(count, 8)
    angle = torch.rand(count, 4, generator=generator, dtype=torch.double) * 0.9
    angle = (angle + torch.arange(4)) * math.pi / 2
    if kind == "concave":
        radius = torch.tensor([20.0, 4, 20, 15], dtype=torch.double).expand(count, 4)
    else:
        radius = 15 + torch.zeros(count, 4, dtype=torch.double)
    offsets = torch.stack([angle.cos(), angle.sin()], -1) * radius[..., None]
    quads = centre + offsets * (
        0.5 + torch.rand(count, 1, 1, generator=generator, dtype=torch.double)
    )
    quads[::2] = quads[::2].flip(1)
    return quads.view(count, 8)


def random_sets(generator, count, kind="spread"):
    """Returns sets of nine points; `gridded` has equal points and points on sides."""
    centre = torch.rand(count, 1, 2, generator=generator, dtype=torch.double) * 60
    sets = centre + torch.randn(count, 9, 2, generator=generator, dtype=torch.double) * 8
    if kind == "gridded":
        sets = (sets / 5).round() * 5
    return sets.view(count, 18)
