# SPDX-License-Identifier: MIT
"""How well a detector's anchors fit the boxes of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..data.detection import DetectionDataset
from ..modeling import build_detection_model
from ..ops import box_convert, box_iou_rotated


class AnchorFit(NamedTuple):
    """The best anchor of each box.

    Args:
        sides: ``[N]``, square roots of the boxes' areas, in pixels of what the detector sees.
        iou: ``[N]``, overlap with the best anchor.
        level: int64 ``[N]``, whose anchor it is.
        strides: of the levels, in pixels.
        anchor_sides: per level the square roots of its anchors' areas.
        high: from this IoU on an anchor is trained to find the box (FG_IOU_THRESHOLD).
        low: below this IoU an anchor is background (BG_IOU_THRESHOLD).
    """

    sides: Tensor
    iou: Tensor
    level: Tensor
    strides: tuple[int, ...]
    anchor_sides: tuple[tuple[float, ...], ...]
    high: float
    low: float

    def of_level(self, level: int) -> tuple[int, int]:
        """How many boxes have their best anchor on a level, and how many match it."""
        here = self.level == level
        return int(here.sum()), int((here & (self.iou >= self.high)).sum())

    @property
    def unmatched(self) -> int:
        """How many boxes no anchor overlaps by more than background may.

        Training gives such a box the best anchor there is, however bad, and learns little from it.
        """
        return int((self.iou < self.low).sum())


def fit_anchors(cfg: Any, dataset: DetectionDataset) -> AnchorFit:
    """Finds the best anchor of each box, crowds left out.

    Boxes are taken at the size at which the detector sees them: resized by INPUT.MIN_SIZE_TEST and
    MAX_SIZE_TEST, within a tile where INPUT.TILE_SIZE cuts images. The anchors of each level stand
    at the position nearest to the box.

    Args:
        cfg: the config of the detector.
        dataset: whose boxes.
    """
    rpn: Any = build_detection_model(cfg).rpn
    generator = rpn.anchor_generator
    section = cfg.MODEL.RETINANET if cfg.MODEL.RETINANET_ON else cfg.MODEL.RPN
    boxes = [torch.zeros(0, 4)]
    for index, image in enumerate(dataset.images):
        scale = seen_scale(cfg, image["height"], image["width"])
        boxes.append(dataset.target(index)["boxes"] * scale)
    all_boxes = torch.cat(boxes)
    cells = [generator.cell_anchors[level] for level in range(len(generator.strides))]
    best = [
        _best_iou(all_boxes, cell, stride)
        for cell, stride in zip(cells, generator.strides, strict=True)
    ]
    iou, level = torch.stack(best).max(dim=0)
    return AnchorFit(
        _sides(all_boxes),
        iou,
        level,
        tuple(generator.strides),
        tuple(tuple(dict.fromkeys(_sides(cell).round(decimals=1).tolist())) for cell in cells),
        section.FG_IOU_THRESHOLD,
        section.BG_IOU_THRESHOLD,
    )


def seen_scale(cfg: Any, height: int, width: int) -> float:
    """By what factor an image of this size is enlarged before the detector sees it."""
    tile = cfg.INPUT.TILE_SIZE
    sides: Sequence[int] = [min(side, tile) if tile else side for side in (height, width)]
    if cfg.INPUT.MIN_SIZE_TEST == 0:
        return 1.0
    return min(cfg.INPUT.MIN_SIZE_TEST / min(sides), cfg.INPUT.MAX_SIZE_TEST / max(sides))


def _sides(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(dim=1).sqrt()


def _best_iou(boxes: Tensor, cell: Tensor, stride: int) -> Tensor:
    """The largest overlap of each box ``[N, 4]`` with one of the anchors of a level ``[A, 4]``."""
    if len(boxes) == 0:
        return boxes.new_zeros(0)
    ours, anchors = (_with_angle(box_convert(b.float(), "xyxy", "cxcywh")) for b in (boxes, cell))
    best = boxes.new_zeros(len(boxes))
    for anchor in anchors:
        moved = anchor.expand_as(ours).clone()
        moved[:, :2] += ((ours[:, :2] - anchor[:2]) / stride).round() * stride
        best = torch.maximum(best, box_iou_rotated(ours, moved, aligned=True))
    return best


def _with_angle(boxes: Tensor) -> Tensor:
    return torch.cat([boxes, boxes.new_zeros(len(boxes), 1)], dim=1)
