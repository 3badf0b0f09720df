# SPDX-License-Identifier: MIT
"""The fit of a detector's anchors to the boxes of a dataset."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..modeling import build_detection_model
from ..ops import box_area, box_convert, box_iou


class AnchorFit(NamedTuple):
    """The best anchor of each box.

    Args:
        sides: ``[N]``, square roots of the box areas, in pixels of the detector's input.
        iou: ``[N]``, IoU with the best anchor.
        level: int64 ``[N]``, pyramid level of the best anchor.
        strides: stride of each level, in pixels.
        anchor_sides: per level, the square roots of its anchor areas.
        ratios: height over width of the anchors of each size.
        high: anchors with at least this IoU are trained to detect the box (FG_IOU_THRESHOLD).
        low: anchors below this IoU are background (BG_IOU_THRESHOLD).
    """

    sides: Tensor
    iou: Tensor
    level: Tensor
    strides: tuple[int, ...]
    anchor_sides: tuple[tuple[float, ...], ...]
    ratios: tuple[float, ...]
    high: float
    low: float

    def level_counts(self, level: int) -> tuple[int, int]:
        """Returns how many boxes have their best anchor on a level, and how many of those match."""
        on_level = self.level == level
        return int(on_level.sum()), int((on_level & (self.iou >= self.high)).sum())

    @property
    def unmatched(self) -> int:
        """Number of boxes whose best anchor is below the background threshold.

        Training still assigns such a box its best anchor, however bad, and learns little from it.
        """
        return int((self.iou < self.low).sum())


def anchor_generator(cfg: Any) -> Any:
    """Builds a config's detector and returns its anchor generator."""
    rpn: Any = build_detection_model(cfg).rpn
    return rpn.anchor_generator


def fit_anchors(cfg: Any, generator: Any, ground_truth: dict[str, Any]) -> AnchorFit:
    """Finds the best anchor of each box, except crowds.

    Boxes are scaled to the detector's input: resized by INPUT.MIN_SIZE_TEST and MAX_SIZE_TEST,
    within a tile if INPUT.TILE_SIZE cuts images. The anchors of each level are placed at the
    position nearest to the box.

    Args:
        cfg: config of the detector.
        generator: its `anchor_generator`.
        ground_truth: a COCO dict that contains the boxes.
    """
    section = cfg.MODEL.RETINANET if cfg.MODEL.RETINANET_ON else cfg.MODEL.RPN
    images = ground_truth["images"]
    scales = {image["id"]: input_scale(cfg, image["height"], image["width"]) for image in images}
    objects = [a for a in ground_truth["annotations"] if not a["iscrowd"]]
    xywh = torch.tensor([a["bbox"] for a in objects], dtype=torch.float32).reshape(-1, 4)
    factors = torch.tensor([scales[a["image_id"]] for a in objects]).reshape(-1, 1)
    boxes = box_convert(xywh, "xywh", "xyxy") * factors
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
        tuple(section.ASPECT_RATIOS),
        section.FG_IOU_THRESHOLD,
        section.BG_IOU_THRESHOLD,
    )


def input_scale(cfg: Any, height: int, width: int) -> float:
    """Returns the factor by which an image of this size is resized for the detector."""
    tile = cfg.INPUT.TILE_SIZE
    # The detector pads an image that is smaller than a tile to a full tile.
    sides = (tile, tile) if tile else (height, width)
    if cfg.INPUT.MIN_SIZE_TEST == 0:
        return 1.0
    return min(cfg.INPUT.MIN_SIZE_TEST / min(sides), cfg.INPUT.MAX_SIZE_TEST / max(sides))


def _best_iou(boxes: Tensor, cell: Tensor, stride: int) -> Tensor:
    """Returns the largest IoU of each box ``[N, 4]`` with a level's anchors ``[A, 4]``."""
    best = boxes.new_zeros(len(boxes))
    for anchor in cell:
        steps = ((_centres(boxes) - _centres(anchor)) / stride).round()
        shifted = anchor + (steps * stride).repeat(1, 2)
        best = torch.maximum(best, box_iou(boxes, shifted, aligned=True))
    return best


def _centres(boxes: Tensor) -> Tensor:
    return (boxes[..., :2] + boxes[..., 2:]) / 2
