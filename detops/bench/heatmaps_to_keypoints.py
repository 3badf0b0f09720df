# SPDX-License-Identifier: MIT
"""Benchmarks of heatmaps_to_keypoints against torchvision, and against a loop over boxes."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, proposals

OPS = ("heatmaps_to_keypoints",)

# Detections, keypoints and cells per side: an image with many people, one person, a small head.
SIZES = ((100, 17, 56), (1, 17, 56), (20, 5, 14))


def plain_heatmaps_to_keypoints(maps: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Processes one box at a time, with all of its heatmaps at once."""
    points, scores = [], []
    for cells, box in zip(maps, boxes, strict=True):
        side = (box[2:] - box[:2]).clamp(min=1)
        width, height = side.ceil().int().tolist()
        enlarged = F.interpolate(cells[None], (height, width), mode="bicubic", align_corners=False)[
            0
        ]
        best, at = enlarged.flatten(1).max(1)
        position = torch.stack([at % width, at // width], 1) + 0.5
        xy = box[:2] + position * side / torch.tensor([width, height], device=box.device)
        points.append(torch.cat([xy, torch.ones_like(xy[:, :1])], 1))
        scores.append(best)
    return torch.stack(points), torch.stack(scores)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    try:
        from torchvision.models.detection.roi_heads import heatmaps_to_keypoints as torchvisions
    except ImportError:
        torchvisions = None
    generator = torch.Generator().manual_seed(0)
    for count, keypoints, side in SIZES:
        maps = torch.randn(count, keypoints, side, side, generator=generator).to(device)
        boxes = proposals(generator, count, 1333, 800).to(device)
        pixels = int((boxes[:, 2:] - boxes[:, :2]).clamp(min=1).prod(1).sum()) * keypoints
        yield Case(
            "heatmaps_to_keypoints",
            f"{count} x {keypoints} x {side} x {side}",
            lambda: ops.heatmaps_to_keypoints(maps, boxes),  # noqa: B023
            torchvision=torchvisions and (lambda: torchvisions(maps, boxes)),  # noqa: B023
            pytorch=lambda: plain_heatmaps_to_keypoints(maps, boxes),  # noqa: B023
            bytes=4 * maps.numel(),
            flops=8 * pixels,
            quick=count == 1,
        )
