# SPDX-License-Identifier: MIT
"""Large images in overlapping tiles: cutting, and merging of detections."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tile = tuple[int, int, int, int]


def tile_origins(length: int, tile: int, overlap: float = 0.25) -> list[int]:
    """Returns the starts of tiles along a side; they cover it, and the last ends flush with it.

    Args:
        length: length of the side in pixels.
        tile: size of a tile in pixels.
        overlap: minimum fraction of a tile that overlaps with the next, in [0, 1).

    Example:
        >>> tile_origins(1000, tile=400, overlap=0.25)
        [0, 300, 600]
    """
    if length < 1 or tile < 1:
        raise ValueError(f"tile_origins: expected length and tile >= 1, got {length} and {tile}")
    if not 0 <= overlap < 1:
        raise ValueError(f"tile_origins: expected overlap in [0, 1), got {overlap}")
    step = max(1, int(tile * (1 - overlap)))
    return [*range(0, length - tile, step), max(0, length - tile)]


def cut_tiles(height: int, width: int, tile: int, overlap: float = 0.25) -> list[Tile]:
    """Returns windows (x1, y1, x2, y2) that cover an image, at most `tile` pixels wide and high.

    Example:
        >>> cut_tiles(400, 700, tile=400)
        [(0, 0, 400, 400), (300, 0, 700, 400)]
    """
    return [
        (x, y, min(x + tile, width), min(y + tile, height))
        for y in tile_origins(height, tile, overlap)
        for x in tile_origins(width, tile, overlap)
    ]


def inner_limits(tiles: Tensor, image_size: tuple[int, int], margin: float) -> Tensor:
    """Returns the limits (x1, y1, x2, y2) of boxes clear of the borders of each tile [T, 4].

    A border of the image itself cuts nothing.
    """
    height, width = image_size
    low, high = tiles.chunk(2, dim=1)
    ends = tiles.new_tensor([width, height])
    low = torch.where(low > 0, low + margin, -margin)
    return torch.cat([low, torch.where(high < ends, high - margin, ends + margin)], dim=1)


def _within_limits(boxes: Tensor, limits: Tensor) -> Tensor:
    """Returns which boxes [K, 4] are within which limits [T, 4]: bool [K, T]."""
    boxes = boxes[:, None]
    return ((boxes[..., :2] > limits[:, :2]) & (boxes[..., 2:] < limits[:, 2:])).all(dim=2)


def redundant_boxes(
    boxes: Tensor, tile_index: int, tiles: Tensor, inner: Tensor, well_inside: Tensor
) -> Tensor:
    """Returns which boxes of a tile are cut by its border but well inside another tile.

    Non-maximum suppression alone keeps the cut half of an object, because its overlap with the
    whole object is too small.

    Args:
        boxes: [K, 4] xyxy in pixels of the image.
        tile_index: index of the tile that they were found in.
        tiles: [T, 4], all tiles of the image.
        inner: [T, 4] from `inner_limits`; a box outside these limits is cut by the tile.
        well_inside: likewise; a box within these limits is well inside the tile.

    Returns:
        bool [K].
    """
    cut = ~_within_limits(boxes, inner[tile_index, None])[:, 0]
    intact = torch.zeros_like(cut)
    others = (tiles != tiles[tile_index]).any(dim=1)
    intact[cut] = (_within_limits(boxes[cut], well_inside) & others).any(dim=1)
    return intact


def merge_detections(
    detections: Sequence[dict[str, Tensor]],
    tiles: Sequence[Tile],
    image_size: tuple[int, int],
    iou_threshold: float = 0.5,
    margin: float = 2.0,
) -> dict[str, Tensor]:
    """Merges the detections of an image's tiles.

    Boxes that a tile's border cuts are dropped if another tile shows them whole. Then duplicates
    are removed by `detops.ops.batched_nms`.

    Args:
        detections: one dict per tile: boxes [k, 4] xyxy in pixels of the tile, labels [k], scores
            [k]; and, in all or none of them, masks bool [k, 1, h, w], at least as large as the
            tile, and keypoints [k, n, 3] (x, y, visibility) with keypoints_scores [k, n].
        tiles: the tiles (x1, y1, x2, y2), in the same order.
        image_size: (height, width) of the image.
        iou_threshold: IoU threshold of non-maximum suppression, within a class.
        margin: in pixels; a box closer to a tile's border than this counts as cut.

    Returns:
        boxes [K, 4] in pixels of the image and clipped to it, labels [K], scores [K], by descending
        score; masks [K, 1, H, W] and keypoints, each from its own tile.

    Example:
        >>> tiles = cut_tiles(400, 700, tile=400)
        >>> box = {"labels": torch.tensor([1]), "scores": torch.tensor([0.9])}
        >>> left = box | {"boxes": torch.tensor([[320.0, 50, 360, 90]])}
        >>> right = box | {"boxes": torch.tensor([[20.0, 50, 60, 90]])}
        >>> merge_detections([left, right], tiles, (400, 700))["boxes"]
        tensor([[320.,  50., 360.,  90.]])
    """
    from ..ops import batched_nms

    if len(detections) != len(tiles) or not tiles:
        raise ValueError(
            "merge_detections: expected one dict per tile and at least one tile, got "
            f"{len(detections)} dicts and {len(tiles)} tiles"
        )
    height, width = image_size
    tile_boxes = detections[0]["boxes"].new_tensor(tiles)
    inner = inner_limits(tile_boxes, image_size, margin)
    # Twice the margin, so that at least one of two tiles keeps an object as wide as their overlap.
    well_inside = inner_limits(tile_boxes, image_size, 2 * margin)
    parts = []
    for number, (found, tile) in enumerate(zip(detections, tile_boxes, strict=True)):
        boxes = found["boxes"] + tile[:2].repeat(2)
        keep = ~redundant_boxes(boxes, number, tile_boxes, inner, well_inside)
        # Store each detection's origin to look up its mask: the masks of all tiles may be too large
        # to merge.
        origin = torch.stack([torch.full_like(found["labels"], number), _row_indices(boxes)], dim=1)
        parts.append((boxes[keep], found["labels"][keep], found["scores"][keep], origin[keep]))
    boxes, labels, scores, origins = (torch.cat(column) for column in zip(*parts, strict=True))
    limit = boxes.new_tensor([width, height, width, height])
    boxes = torch.minimum(boxes.clamp(min=0), limit)
    visible = (boxes[:, 2:] > boxes[:, :2]).all(dim=1)
    boxes, labels, scores = boxes[visible], labels[visible], scores[visible]
    keep = batched_nms(boxes, scores, labels, iou_threshold)
    merged = {"boxes": boxes[keep], "labels": labels[keep], "scores": scores[keep]}
    kept = origins[visible][keep]
    if "keypoints" in detections[0]:
        merged |= _merge_keypoints(detections, tiles, kept)
    if "masks" in detections[0]:
        masks = torch.zeros(len(keep), 1, height, width, dtype=torch.bool, device=boxes.device)
        for mask, (number, index) in zip(masks, kept.tolist(), strict=True):
            x1, y1, x2, y2 = tiles[number]
            seen = detections[number]["masks"][index]
            mask[:, y1:y2, x1:x2] = seen[:, : y2 - y1, : x2 - x1]
        merged["masks"] = masks
    return merged


def _merge_keypoints(
    detections: Sequence[dict[str, Tensor]], tiles: Sequence[Tile], kept: Tensor
) -> dict[str, Tensor]:
    """Returns keypoints and scores of the kept detections, given as (tile, index) [K, 2]."""
    counts = torch.tensor([len(found["scores"]) for found in detections], device=kept.device)
    rows = (counts.cumsum(0) - counts)[kept[:, 0]] + kept[:, 1]
    keys = [key for key in ("keypoints", "keypoints_scores") if key in detections[0]]
    merged: dict[str, Tensor] = {
        key: torch.cat([found[key] for found in detections])[rows] for key in keys
    }
    corners = merged["keypoints"].new_tensor([tile[:2] for tile in tiles])
    merged["keypoints"][..., :2] += corners[kept[:, 0]][:, None]
    return merged


def _row_indices(boxes: Tensor) -> Tensor:
    return torch.arange(len(boxes), device=boxes.device)
