# SPDX-License-Identifier: MIT
"""How well a detector's anchors fit the boxes of a data set."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..modeling import build_detection_model
from ..ops import box_area, box_convert, box_iou


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


def anchor_generator(cfg: Any) -> Any:
    """What makes the anchors of a config's detector."""
    rpn: Any = build_detection_model(cfg).rpn
    return rpn.anchor_generator


def fit_anchors(cfg: Any, generator: Any, ground_truth: dict[str, Any]) -> AnchorFit:
    """Finds the best anchor of each box, crowds left out.

    Boxes are taken at the size at which the detector sees them: resized by INPUT.MIN_SIZE_TEST and
    MAX_SIZE_TEST, within a tile where INPUT.TILE_SIZE cuts images. The anchors of each level stand
    at the position nearest to the box.

    Args:
        cfg: the config of the detector.
        generator: its `anchor_generator`.
        ground_truth: a COCO dict, whose boxes they are.
    """
    section = cfg.MODEL.RETINANET if cfg.MODEL.RETINANET_ON else cfg.MODEL.RPN
    images = ground_truth["images"]
    scales = {image["id"]: seen_scale(cfg, image["height"], image["width"]) for image in images}
    objects = [a for a in ground_truth["annotations"] if not a["iscrowd"]]
    given = torch.tensor([a["bbox"] for a in objects], dtype=torch.float32).reshape(-1, 4)
    factors = torch.tensor([scales[a["image_id"]] for a in objects]).reshape(-1, 1)
    boxes = box_convert(given, "xywh", "xyxy") * factors
    cells = [generator.cell_anchors[level] for level in range(len(generator.strides))]
    best = [
        _best_iou(boxes, cell, stride)
        for cell, stride in zip(cells, generator.strides, strict=True)
    ]
    iou, level = torch.stack(best).max(dim=0)
    return AnchorFit(
        box_area(boxes).sqrt(),
        iou,
        level,
        tuple(generator.strides),
        tuple(
            tuple(dict.fromkeys(box_area(cell).sqrt().round(decimals=1).tolist())) for cell in cells
        ),
        section.FG_IOU_THRESHOLD,
        section.BG_IOU_THRESHOLD,
    )


def seen_scale(cfg: Any, height: int, width: int) -> float:
    """By what factor an image of this size is enlarged before the detector sees it."""
    tile = cfg.INPUT.TILE_SIZE
    # The detector fills up an image that is smaller than a tile to a whole one.
    sides = (tile, tile) if tile else (height, width)
    if cfg.INPUT.MIN_SIZE_TEST == 0:
        return 1.0
    return min(cfg.INPUT.MIN_SIZE_TEST / min(sides), cfg.INPUT.MAX_SIZE_TEST / max(sides))


def _best_iou(boxes: Tensor, cell: Tensor, stride: int) -> Tensor:
    """The largest overlap of each box ``[N, 4]`` with one of the anchors of a level ``[A, 4]``."""
    best = boxes.new_zeros(len(boxes))
    for anchor in cell:
        steps = ((_middles(boxes) - _middles(anchor)) / stride).round()
        moved = anchor + (steps * stride).repeat(1, 2)
        best = torch.maximum(best, box_iou(boxes, moved, aligned=True))
    return best


def _middles(boxes: Tensor) -> Tensor:
    return (boxes[..., :2] + boxes[..., 2:]) / 2
