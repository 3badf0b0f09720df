# SPDX-License-Identifier: MIT
"""Benchmarks of the ops on rotated boxes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .. import ops
from .case import Case, clustered, uniform

BYTES_PER_BOX = 5 * 4 + 4
FLOPS_PER_PAIR = 10  # of those that are far apart, the most


def _rotated(generator: torch.Generator, boxes: Tensor) -> Tensor:
    """Upright boxes, turned around their centres."""
    angle = torch.rand(len(boxes), 1, generator=generator) * 360 - 180
    return torch.cat([ops.box_convert(boxes, "xyxy", "cxcywh"), angle], 1)


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
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
