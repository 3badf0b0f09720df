# SPDX-License-Identifier: MIT
"""Large images in overlapping tiles: cutting, and merging what was found in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tile = tuple[int, int, int, int]


def tile_origins(length: int, tile: int, overlap: float = 0.25) -> list[int]:
    """Where tiles start along one side: every pixel covered, the last tile flush with the end.

    Args:
        length: pixels of the side.
        tile: pixels of a tile.
        overlap: least share of a tile that it has in common with the next, in [0, 1).

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
    """Windows (x1, y1, x2, y2) that cover an image, at most `tile` pixels wide and high.

    Example:
        >>> cut_tiles(400, 700, tile=400)
        [(0, 0, 400, 400), (300, 0, 700, 400)]
    """
    return [
        (x, y, min(x + tile, width), min(y + tile, height))
        for y in tile_origins(height, tile, overlap)
        for x in tile_origins(width, tile, overlap)
    ]


def clear_of_borders(tiles: Tensor, image_size: tuple[int, int], margin: float) -> Tensor:
    """Between which (x1, y1, x2, y2) a box keeps clear of the borders of each of the tiles [T, 4].

    A border of the image itself cuts nothing.
    """
    height, width = image_size
    low, high = tiles.chunk(2, dim=1)
    ends = tiles.new_tensor([width, height])
    low = torch.where(low > 0, low + margin, -margin)
    return torch.cat([low, torch.where(high < ends, high - margin, ends + margin)], dim=1)


def _between(boxes: Tensor, limits: Tensor) -> Tensor:
    """Which boxes [K, 4] are between which limits [T, 4]: bool [K, T]."""
    boxes = boxes[:, None]
    return ((boxes[..., :2] > limits[:, :2]) & (boxes[..., 2:] < limits[:, 2:])).all(dim=2)


def seen_better_elsewhere(
    boxes: Tensor, own: int, tiles: Tensor, inner: Tensor, elsewhere: Tensor
) -> Tensor:
    """Which boxes of a tile are cut by its border while another tile has them in its inside.

    Non-maximum suppression alone keeps the cut half of an object, because it overlaps the whole
    one too little.

    Args:
        boxes: [K, 4] xyxy in the image's pixels.
        own: the number of the tile they were found in.
        tiles: [T, 4], all tiles of the image.
        inner: [T, 4] from `clear_of_borders`; a box outside is cut by the tile.
        elsewhere: likewise; a box between them is in the inside of the tile.

    Returns:
        bool [K].
    """
    cut = ~_between(boxes, inner[own, None])[:, 0]
    whole = torch.zeros_like(cut)
    others = (tiles != tiles[own]).any(dim=1)
    whole[cut] = (_between(boxes[cut], elsewhere) & others).any(dim=1)
    return whole


def merge_detections(
    detections: Sequence[dict[str, Tensor]],
    tiles: Sequence[Tile],
    image_size: tuple[int, int],
    iou_threshold: float = 0.5,
    margin: float = 2.0,
) -> dict[str, Tensor]:
    """Puts the detections of an image's tiles together.

    Boxes that a tile's border cuts are dropped where another tile shows them whole, then
    duplicates fall by `detops.ops.batched_nms`.

    Args:
        detections: one dict per tile: boxes [k, 4] xyxy in the tile's pixels, labels [k],
            scores [k]; and in all or none masks bool [k, 1, h, w], at least as large as the tile,
            and keypoints [k, n, 3] (x, y, visibility) with keypoints_scores [k, n].
        tiles: the tiles (x1, y1, x2, y2), in the same order.
        image_size: (height, width) of the image.
        iou_threshold: of the non-maximum suppression, within a class.
        margin: pixels; a box nearer to a tile's border than this counts as cut.

    Returns:
        boxes [K, 4] in the image's pixels and clipped to it, labels [K], scores [K], by descending
        score; masks [K, 1, H, W] and keypoints, each as its tile shows it.

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
    places = detections[0]["boxes"].new_tensor(tiles)
    inner = clear_of_borders(places, image_size, margin)
    # Twice the margin, so that of two tiles at least one keeps an object that is as wide as their
    # overlap.
    elsewhere = clear_of_borders(places, image_size, 2 * margin)
    parts = []
    for number, (found, place) in enumerate(zip(detections, places, strict=True)):
        boxes = found["boxes"] + place[:2].repeat(2)
        keep = ~seen_better_elsewhere(boxes, number, places, inner, elsewhere)
        # Where each came from, for its mask: those of all tiles together may be large.
        origin = torch.stack([torch.full_like(found["labels"], number), _count(boxes)], dim=1)
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
    """Keypoints and their scores of the detections (tile, index) that are kept [K, 2]."""
    counts = torch.tensor([len(found["scores"]) for found in detections], device=kept.device)
    rows = (counts.cumsum(0) - counts)[kept[:, 0]] + kept[:, 1]
    keys = [key for key in ("keypoints", "keypoints_scores") if key in detections[0]]
    merged: dict[str, Tensor] = {
        key: torch.cat([found[key] for found in detections])[rows] for key in keys
    }
    corners = merged["keypoints"].new_tensor([tile[:2] for tile in tiles])
    merged["keypoints"][..., :2] += corners[kept[:, 0]][:, None]
    return merged


def _count(boxes: Tensor) -> Tensor:
    return torch.arange(len(boxes), device=boxes.device)
