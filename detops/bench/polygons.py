# SPDX-License-Identifier: MIT
"""Benchmarks of the polygon ops against plain PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = (
    "convex_iou",
    "convex_giou",
    "min_area_polygons",
    "box_iou_quadri",
    "nms_quadri",
    "points_in_polygons",
)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _hull_sides(points: Tensor) -> Tensor:
    """Returns ``[..., P, P]``: whether the hull has a side from one point to another.

    The points must be distinct.
    """
    along = points[..., None, :, :] - points[..., :, None, :]
    turn = _cross(along[..., None, :], along[..., None, :, :])
    right = (turn < 0).any(-1)
    return ~right & ~torch.eye(points.size(-2), dtype=torch.bool, device=points.device)


def _within(a: Tensor, b: Tensor, p: Tensor, q: Tensor, real: Tensor | None) -> Tensor:
    """Integrates x dy - y dx along segments ab, restricted to the left of all lines pq."""
    line = (q - p)[..., None, :, :]
    left_a = _cross(line, a[..., None, :] - p[..., None, :, :])
    left_b = _cross(line, b[..., None, :] - p[..., None, :, :])
    enters, leaves = (left_a < 0) & (left_b > 0), (left_a > 0) & (left_b < 0)
    t = left_a / (left_a - left_b).where(enters | leaves, 1)
    outside = (left_a <= 0) & (left_b <= 0)
    if real is not None:
        enters, leaves, outside = (x & real[..., None, :] for x in (enters, leaves, outside))
    begin = torch.where(enters, t, 0).amax(-1)
    end = torch.where(leaves, t, 1).amin(-1)
    inside = ~outside.any(-1) & (end > begin)
    return torch.where(inside, (end - begin).clamp(min=0) * _cross(a, b), 0)


def plain_convex_areas(sets: Tensor, quads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns areas for hulls and convex quadrilaterals: intersection, sum, and hull of the union.

    Sets ``[..., 9, 2]`` and counter-clockwise quadrilaterals ``[..., 4, 2]`` broadcast.
    """
    batch = torch.broadcast_shapes(sets.shape[:-2], quads.shape[:-2])
    sets, quads = sets.expand(*batch, 9, 2), quads.expand(*batch, 4, 2)
    first = sets[..., :, None, :].expand(*batch, 9, 9, 2).flatten(-3, -2)
    second = sets[..., None, :, :].expand(*batch, 9, 9, 2).flatten(-3, -2)
    sides = _hull_sides(sets).flatten(-2)
    after = quads.roll(-1, -2)
    side_integrals = _within(first, second, quads, after, None) * sides
    common = (side_integrals.sum(-1) + _within(quads, after, first, second, sides).sum(-1)) / 2
    areas = ((_cross(first, second) * sides).sum(-1) + _cross(quads, after).sum(-1)) / 2
    both = torch.cat([sets, quads], -2)
    around = _cross(both[..., :, None, :], both[..., None, :, :]) * _hull_sides(both)
    return common, areas, around.sum((-2, -1)) / 2


def plain_convex_iou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Computes the IoU of all pairs."""
    sets, quads = pointsets.view(-1, 1, 9, 2), polygons.view(1, -1, 4, 2)
    common, areas, _ = plain_convex_areas(sets, quads)
    return common / (areas - common)


def plain_convex_giou(pointsets: Tensor, polygons: Tensor) -> Tensor:
    """Computes the GIoU of matched pairs."""
    common, areas, around = plain_convex_areas(pointsets.view(-1, 9, 2), polygons.view(-1, 4, 2))
    return common / (areas - common) - (around - (areas - common)) / around


def plain_min_area_polygons(pointsets: Tensor) -> Tensor:
    """Rotates the points along each line through two points that may be a side of the hull."""
    points = pointsets.view(-1, 9, 2)
    along = (points[:, None] - points[:, :, None]).flatten(1, 2)
    sides = _hull_sides(points).flatten(1)
    u = along / along.norm(dim=-1, keepdim=True)
    v = torch.stack([-u[..., 1], u[..., 0]], -1)
    on_u, on_v = (
        (points[:, None] * u[:, :, None]).sum(-1),
        (points[:, None] * v[:, :, None]).sum(-1),
    )
    low_u, high_u, low_v, high_v = on_u.amin(-1), on_u.amax(-1), on_v.amin(-1), on_v.amax(-1)
    area = ((high_u - low_u) * (high_v - low_v)).where(sides, torch.inf)
    best = area.argmin(1, keepdim=True)
    low_u, high_u, low_v, high_v = (x.gather(1, best) for x in (low_u, high_u, low_v, high_v))
    u, v = (x.gather(1, best[..., None].expand(-1, -1, 2)) for x in (u, v))
    corners = [(high_u, low_v), (low_u, low_v), (low_u, high_v), (high_u, high_v)]
    return torch.cat([a[..., None] * u + b[..., None] * v for a, b in corners], 1).flatten(1)


def plain_points_in_polygons(points: Tensor, polygons: Tensor) -> Tensor:
    """Applies the even-odd rule to all points and polygons at once."""
    corners = polygons.view(-1, 4, 2)
    x, y = points[:, None, None].unbind(-1)
    (x1, y1), (x2, y2) = corners.unbind(-1), corners.roll(-1, 1).unbind(-1)
    crossed = ((y1 <= y) != (y2 <= y)) & (x < x1 + (y - y1) * (x2 - x1) / (y2 - y1))
    return crossed.sum(-1) % 2 == 1


def plain_quad_iou(first: Tensor, second: Tensor) -> Tensor:
    """Computes the IoU of convex, counter-clockwise quadrilaterals ``[..., 4, 2]``; broadcasts."""
    batch = torch.broadcast_shapes(first.shape[:-2], second.shape[:-2])
    first, second = first.expand(*batch, 4, 2), second.expand(*batch, 4, 2)
    after = [x.roll(-1, -2) for x in (first, second)]
    common = _within(first, after[0], second, after[1], None).sum(-1)
    common = (common + _within(second, after[1], first, after[0], None).sum(-1)) / 2
    areas = (_cross(first, after[0]) + _cross(second, after[1])).sum(-1) / 2
    return common / (areas - common)


def plain_nms_quadri(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Runs NMS on the matrix of all overlaps."""
    order = scores.argsort(descending=True, stable=True)
    corners = boxes[order].view(-1, 4, 2)
    above = plain_quad_iou(corners[:, None], corners) > threshold
    alive = torch.ones(len(order), dtype=torch.bool, device=boxes.device)
    for i in range(len(order)):
        if alive[i]:
            alive[i + 1 :] &= ~above[i, i + 1 :]
    return order[alive]


def _quads(generator: torch.Generator, count: int) -> Tensor:
    """Returns convex, counter-clockwise quadrilaterals in an image of 1,000 pixels."""
    angle = torch.rand(count, 4, generator=generator) * 0.8 + torch.arange(4)
    angle = angle * torch.pi / 2
    radius = 20 + torch.rand(count, 1, generator=generator) * 60
    centre = torch.rand(count, 1, 2, generator=generator) * 1000
    around = torch.stack([angle.cos(), angle.sin()], -1) * radius[..., None]
    return (centre + around).view(count, 8)


def _sets(generator: torch.Generator, quads: Tensor) -> Tensor:
    """Returns point sets near the quadrilaterals."""
    centre = quads.view(-1, 4, 2).mean(1, keepdim=True)
    spread = torch.randn(len(quads), 9, 2, generator=generator) * 25
    return (centre + spread).view(-1, 18)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for sets, count in ((50, 5), (1000, 20)):
        quads = _quads(generator, sets)
        a, b = _sets(generator, quads).to(device), quads[:count].to(device)
        yield Case(
            "convex_iou",
            f"{sets:,} x {count}",
            lambda: ops.convex_iou(a, b),  # noqa: B023
            pytorch=lambda: plain_convex_iou(a, b),  # noqa: B023
            bytes=4 * sets * (18 + count),
            flops=10 * sets * count,
            quick=sets == 50,
        )
    for count in (20, 5000):
        quads = _quads(generator, count)
        a, b = _sets(generator, quads).to(device), quads.to(device)
        leaf = a.clone().requires_grad_()
        found, expected = ops.convex_giou(leaf, b), plain_convex_giou(leaf, b)
        grad = torch.randn(count, generator=generator).to(device)
        yield Case(
            "convex_giou forward",
            f"{count:,} pairs",
            lambda: ops.convex_giou(a, b),  # noqa: B023
            pytorch=lambda: plain_convex_giou(a, b),  # noqa: B023
            bytes=4 * 27 * count,
            flops=600 * count,
            quick=count == 20,
        )
        yield Case(
            "convex_giou backward",
            f"{count:,} pairs",
            gradients(found, leaf, grad),
            pytorch=gradients(expected, leaf, grad),
            bytes=4 * 45 * count,
            flops=1000 * count,
        )
        yield Case(
            "min_area_polygons",
            f"{count:,} sets",
            lambda: ops.min_area_polygons(a),  # noqa: B023
            pytorch=lambda: plain_min_area_polygons(a),  # noqa: B023
            bytes=4 * 26 * count,
            flops=500 * count,
            quick=count == 20,
        )
    for first, count in ((50, 20), (1000, 1000)):
        a, b = (_quads(generator, n).to(device) for n in (first, count))
        yield Case(
            "box_iou_quadri",
            f"{first:,} x {count:,}",
            lambda: ops.box_iou_quadri(a, b),  # noqa: B023
            pytorch=lambda: plain_quad_iou(a.view(-1, 1, 4, 2), b.view(-1, 4, 2)),  # noqa: B023
            bytes=4 * first * count,
            flops=10 * first * count,
            quick=first == 50,
        )
        near = a + torch.randn(first, 8, generator=generator).to(device)
        yield Case(
            "box_iou_quadri, aligned",
            f"{first:,} pairs",
            lambda: ops.box_iou_quadri(a, near, aligned=True),  # noqa: B023
            pytorch=lambda: plain_quad_iou(a.view(-1, 4, 2), near.view(-1, 4, 2)),  # noqa: B023
            bytes=4 * 17 * first,
            flops=200 * first,
        )
    for count in (50, 1000):
        objects = _quads(generator, count // 10)
        boxes = objects.repeat(10, 1) + 8 * torch.randn(count, 1, generator=generator)
        boxes, scores = boxes.to(device), torch.rand(count, generator=generator).to(device)
        yield Case(
            "nms_quadri",
            f"{count:,} clustered, 0.5",
            lambda: ops.nms_quadri(boxes, scores, 0.5),  # noqa: B023
            pytorch=lambda: plain_nms_quadri(boxes, scores, 0.5),  # noqa: B023
            bytes=36 * count,
            quick=count == 50,
        )
    for points, count in ((100, 5), (20_000, 100)):
        positions = (torch.rand(points, 2, generator=generator) * 1000).to(device)
        polygons = _quads(generator, count).to(device)
        yield Case(
            "points_in_polygons",
            f"{points:,} x {count}",
            lambda: ops.points_in_polygons(positions, polygons),  # noqa: B023
            pytorch=lambda: plain_points_in_polygons(positions, polygons),  # noqa: B023
            bytes=points * count + 8 * points,
            flops=40 * points * count,
            quick=points == 100,
        )
