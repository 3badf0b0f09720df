# SPDX-License-Identifier: MIT
"""Benchmarks of the ops on rotated boxes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, clustered, gradients, uniform

OPS = ("nms_rotated", "batched_nms_rotated", "box_iou_rotated", "rotated_iou")

BYTES_PER_BOX = 5 * 4 + 4
FLOPS_PER_PAIR = 10  # most pairs are far apart and cost only this


def _rotated(generator: torch.Generator, boxes: Tensor) -> Tensor:
    """Rotates upright boxes around their centres by random angles."""
    angle = torch.rand(len(boxes), 1, generator=generator) * 360 - 180
    return torch.cat([ops.box_convert(boxes, "xyxy", "cxcywh"), angle], 1)


def _corners(boxes: Tensor) -> Tensor:
    """Returns the corners ``[N, 4, 2]`` in image coordinates."""
    angle = torch.deg2rad(boxes[:, 4:])
    sin, cos = angle.sin(), angle.cos()
    u = boxes[:, 2:3] / 2 * torch.cat([cos, -sin], 1)
    v = boxes[:, 3:4] / 2 * torch.cat([sin, cos], 1)
    return boxes[:, None, :2] + torch.stack([-u - v, u - v, u + v, v - u], 1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def plain_rotated_iou(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    """Computes the IoU of matched pairs: sorts inner corners and edge crossings by angle."""
    a, b = _corners(boxes1), _corners(boxes2)
    side_a, side_b = a.roll(-1, 1) - a, b.roll(-1, 1) - b
    within_a = (_cross(side_a[:, None], b[:, :, None] - a[:, None]) >= 0).all(2)
    within_b = (_cross(side_b[:, None], a[:, :, None] - b[:, None]) >= 0).all(2)
    offset, turn = b[:, None] - a[:, :, None], _cross(side_a[:, :, None], side_b[:, None])
    t, s = _cross(offset, side_b[:, None]) / turn, _cross(offset, side_a[:, :, None]) / turn
    crossing = ((t >= 0) & (t <= 1) & (s >= 0) & (s <= 1)).flatten(1)
    t = t.where(crossing.view_as(t), 0)
    intersections = (a[:, :, None] + t[..., None] * side_a[:, :, None]).flatten(1, 2)
    corners, real = (
        torch.cat([a, b, intersections], 1),
        torch.cat([within_b, within_a, crossing], 1),
    )
    count = real.sum(1, keepdim=True).clamp(min=1)
    corners = corners - (corners * real[..., None]).sum(1, keepdim=True) / count[..., None]
    angle = torch.atan2(corners[..., 1], corners[..., 0]).masked_fill(~real, 9)
    order = angle.argsort(1)
    # Entries that are no corner sort last, and repeat the first corner.
    order = torch.where(real.gather(1, order), order, order[:, :1])
    corners = corners.gather(1, order[..., None].expand(-1, -1, 2)) * real.any(1)[:, None, None]
    common = _cross(corners, corners.roll(-1, 1)).sum(1) / 2
    return common / (boxes1[:, 2:4].prod(1) + boxes2[:, 2:4].prod(1) - common)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    for name, make, count, threshold in (
        ("clustered", clustered, 1000, 0.5),
        ("clustered", clustered, 2000, 0.3),
        ("clustered", clustered, 2000, 0.5),
        ("clustered", clustered, 2000, 0.7),
        ("clustered", clustered, 10_000, 0.5),
        ("uniform", uniform, 10_000, 0.5),
    ):
        boxes, scores = make(generator, count)
        boxes, scores = _rotated(generator, boxes).to(device), scores.to(device)
        yield Case(
            "nms_rotated",
            f"{count:,} {name}, {threshold}",
            lambda: ops.nms_rotated(boxes, scores, threshold),  # noqa: B023
            bytes=count * BYTES_PER_BOX,
            quick=count == 1000,
        )
    for count, classes in ((10_000, 15), (100_000, 80)):
        boxes, scores = clustered(generator, count)
        boxes, scores = _rotated(generator, boxes).to(device), scores.to(device)
        labels = torch.randint(0, classes, (count,), generator=generator).to(device)
        yield Case(
            "batched_nms_rotated",
            f"{count:,} x {classes} classes, 0.5",
            lambda: ops.batched_nms_rotated(boxes, scores, labels, 0.5),  # noqa: B023
            bytes=count * (BYTES_PER_BOX + 8),
            quick=count == 10_000,
        )
    for count in (500, 2000):
        a = _rotated(generator, uniform(generator, count)[0]).to(device)
        b = _rotated(generator, uniform(generator, count)[0]).to(device)
        yield Case(
            "box_iou_rotated",
            f"{count:,} x {count:,}",
            lambda: ops.box_iou_rotated(a, b),  # noqa: B023
            bytes=4 * count * count,
            flops=FLOPS_PER_PAIR * count * count,
            quick=count == 500,
        )
    for count in (50, 20_000):
        a = _rotated(generator, clustered(generator, count)[0]).to(device)
        b = (a + 3 * torch.randn(count, 5, generator=generator).to(device)).abs()
        yield Case(
            "box_iou_rotated, aligned",
            f"{count:,} pairs",
            lambda: ops.box_iou_rotated(a, b, aligned=True),  # noqa: B023
            pytorch=lambda: plain_rotated_iou(a, b),  # noqa: B023
            bytes=11 * 4 * count,
            flops=200 * count,
            quick=count == 50,
        )
        leaf = a.clone().requires_grad_()
        found, expected = ops.rotated_iou(leaf, b), plain_rotated_iou(leaf, b)
        grad = torch.randn(count, generator=generator).to(device)
        yield Case(
            "rotated_iou backward",
            f"{count:,} pairs",
            gradients(found, leaf, grad),
            pytorch=gradients(expected, leaf, grad),
            bytes=21 * 4 * count,
            flops=500 * count,
            quick=count == 50,
        )
