"""Slow, obvious versions of the ops on rotated boxes: the oracles."""

import math

import torch


def corners(box):
    """Returns the corners, counter-clockwise with x right and y up."""
    cx, cy, w, h, angle = box
    c, s = math.cos(math.radians(angle)), math.sin(math.radians(angle))
    u, v = (w / 2 * c, -w / 2 * s), (h / 2 * s, h / 2 * c)
    return [
        (cx + i * u[0] + j * v[0], cy + i * u[1] + j * v[1])
        for i, j in ((-1, -1), (1, -1), (1, 1), (-1, 1))
    ]


def _area(polygon):
    """Applies the shoelace formula, relative to the first corner."""
    if len(polygon) < 3:
        return 0.0
    x0, y0 = polygon[0]
    pairs = zip(polygon[1:], polygon[2:], strict=False)
    return sum((a[0] - x0) * (b[1] - y0) - (b[0] - x0) * (a[1] - y0) for a, b in pairs) / 2


def _clip(polygon, p, q):
    """Returns the part of a polygon on the left of the line from p to q (Sutherland-Hodgman)."""

    def side(r):
        return (q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0])

    clipped = []
    for a, b in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        sa, sb = side(a), side(b)
        if sa >= 0:
            clipped.append(a)
        if (sa > 0 > sb) or (sa < 0 < sb):
            t = sa / (sa - sb)
            clipped.append((a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])))
    return clipped


def iou(a, b, mode="iou"):
    """Returns the overlap in global axes, relative to the first box; NaN where undefined."""
    if not all(math.isfinite(x) for x in (*a, *b)):
        return math.nan
    area_a, area_b = (w * h if w > 0 and h > 0 else 0.0 for w, h in (a[2:4], b[2:4]))
    intersection = 0.0
    if area_a and area_b:
        polygon = corners((0.0, 0.0, *a[2:]))
        other = corners((b[0] - a[0], b[1] - a[1], *b[2:]))
        for p, q in zip(other, other[1:] + other[:1], strict=True):
            polygon = _clip(polygon, p, q)
        intersection = _area(polygon)
    base = area_a + area_b - intersection if mode == "iou" else area_a
    return intersection / base if base > 0 else math.nan


def box_iou_rotated(boxes1, boxes2, mode="iou"):
    rows = [[iou(a, b, mode) for b in boxes2.double().tolist()] for a in boxes1.double().tolist()]
    return torch.tensor(rows, dtype=torch.double).reshape(len(boxes1), len(boxes2))


def random_boxes(generator, count, dtype=torch.float32, kind="mixed"):
    """Returns rotated boxes that overlap, touch, coincide, enclose and miss each other."""
    centre = torch.rand(count, 2, generator=generator, dtype=torch.double) * 100
    side = 5 + torch.rand(count, 2, generator=generator, dtype=torch.double) * 40
    angle = torch.rand(count, 1, generator=generator, dtype=torch.double) * 720 - 360
    boxes = torch.cat([centre, side, angle], 1)
    if kind == "thin":
        boxes[:, 2] *= 20
        boxes[:, 3] /= 10
    if kind == "near copies":
        source = torch.randint(0, max(1, count // 6), (count,), generator=generator)
        boxes = boxes[source]
        shift = torch.randn(count, 5, generator=generator, dtype=torch.double)
        boxes += shift * (10.0 ** torch.randint(-9, 1, (count, 1), generator=generator))
    if kind == "gridded":
        boxes[:, :4] = (boxes[:, :4] / 10).ceil() * 10
        boxes[:, 4] = (boxes[:, 4] / 45).round() * 45
    if kind == "sizes":
        boxes[:, 2:4] *= torch.exp(torch.randn(count, 1, generator=generator) * 3).double()
    if kind == "one centre":
        boxes[:, :2] = 50
    return boxes.to(dtype)


KINDS = ["mixed", "thin", "near copies", "gridded", "sizes"]
