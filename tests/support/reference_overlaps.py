"""Slow, obvious overlaps of two boxes, and losses from them: the oracles."""

import math

from reference_rotated import corners, iou


def trade_off(a, b, loss=False, eps=1e-7):
    """Returns the factor of the aspect ratios in "ciou"."""
    v = _aspect_difference(a, b)
    return v / (1 - box_overlap(a, b, "iou", loss, eps) + v + eps)


def _aspect_difference(a, b):
    angle = math.atan((a[2] - a[0]) / (a[3] - a[1])) - math.atan((b[2] - b[0]) / (b[3] - b[1]))
    return 4 / math.pi**2 * angle**2


def box_overlap(a, b, kind, loss=False, eps=1e-7, alpha=None):
    """Returns the overlap of two upright boxes with positive sides.

    Args:
        a: (x1, y1, x2, y2).
        b: likewise.
        kind: iou, giou, diou or ciou.
        loss: adds ``eps`` to the areas of the union and of the enclosing box.
        eps: added to the squared diagonal of the enclosing box.
        alpha: the trade-off factor of ciou, by default that of these boxes.
    """
    denominator_eps = eps if loss else 0
    intersection = max(0, min(a[2], b[2]) - max(a[0], b[0])) * max(
        0, min(a[3], b[3]) - max(a[1], b[1])
    )
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - intersection
    ratio = intersection / (union + denominator_eps)
    if kind == "iou":
        return ratio
    width, height = max(a[2], b[2]) - min(a[0], b[0]), max(a[3], b[3]) - min(a[1], b[1])
    if kind == "giou":
        return ratio - (width * height - union) / (width * height + denominator_eps)
    distance = math.dist((a[0] + a[2], a[1] + a[3]), (b[0] + b[2], b[1] + b[3])) / 2
    ratio -= distance**2 / (width**2 + height**2 + eps)
    if kind == "diou":
        return ratio
    return ratio - (trade_off(a, b, loss, eps) if alpha is None else alpha) * _aspect_difference(
        a, b
    )


def rotated_loss(a, b, mode, eps=1e-7):
    """Returns 1 less the overlap of two rotated boxes; upright boxes enclose both."""
    ratio = iou(a, b)
    x, y = zip(*corners(a), *corners(b), strict=True)
    width, height = max(x) - min(x), max(y) - min(y)
    if mode == "giou":
        union = (a[2] * a[3] + b[2] * b[3]) / (1 + ratio)
        ratio -= (width * height - union) / (width * height + eps)
    if mode == "diou":
        ratio -= math.dist(a[:2], b[:2]) ** 2 / (width**2 + height**2 + eps)
    return 1 - ratio
