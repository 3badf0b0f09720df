# SPDX-License-Identifier: MIT
"""Benchmarks of box_iou, its kin and match_boxes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import ops
from .case import Case, plain_iou, uniform


def cases(device: torch.device) -> Iterator[Case]:
    """All of them, one at a time."""
    import torchvision

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    for count in (100, 500, 2000, *((10_000,) if on_gpu else ())):
        a = uniform(generator, count)[0].to(device)
        b = uniform(generator, count)[0].to(device)
        yield Case(
            "box_iou",
            f"{count:,} x {count:,}",
            lambda: ops.box_iou(a, b),  # noqa: B023
            lambda: torchvision.ops.box_iou(a, b),  # noqa: B023
            lambda: plain_iou(a, b),  # noqa: B023
            bytes=4 * count * count,
            flops=14 * count * count,
            quick=count == 2000,
            series="box_iou, N x N",
            size=count,
            bandwidth=count == 10_000,
        )
    for name in ("generalized_box_iou", "distance_box_iou", "complete_box_iou"):
        yield Case(
            name,
            f"{count:,} x {count:,}",
            lambda: getattr(ops, name)(a, b),  # noqa: B023
            lambda: getattr(torchvision.ops, name)(a, b),  # noqa: B023
            bytes=4 * len(a) * len(b),
            flops=26 * len(a) * len(b),
            bandwidth=on_gpu,
        )
    anchors = uniform(generator, 100_000)[0].to(device)
    truth = a[:100]
    yield Case(
        "match_boxes",
        "100,000 x 100",
        lambda: ops.match_boxes(anchors, truth),
        lambda: torchvision.ops.box_iou(anchors, truth).max(1),
        lambda: plain_iou(anchors, truth).max(1),
        bytes=len(anchors) * (16 + 12),
        flops=14 * len(anchors) * len(truth),
    )
