# SPDX-License-Identifier: MIT
"""Results of the ops that the page shows; the page itself computes none of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..ops import box_convert, clip_boxes_to_image, deform_conv2d, nms_match, roi_align
from .queries import Choice, Number

THRESHOLDS = [step / 50 for step in range(51)]
SCENE = (480, 320)  # width and height of the image that contains the boxes, in pixels
CANDIDATES = 9  # boxes around each object
MAP_HEIGHT, MAP_WIDTH = 12, 16
MAP_SIDE = 17  # side of the feature map that the deformable convolution reads
KERNEL = 3
# Range of rows and columns in the middle, from which no allowed offset reaches beyond the border.
POSITION_RANGE = (5, MAP_SIDE - 6)
PATTERNS = ("none", "wider", "turned", "shifted", "random")


def nms_scene(seed: int, objects: int) -> dict[str, Any]:
    """Generates candidates around random objects, and applies NMS to them at each threshold.

    Args:
        seed: seed of the random generator.
        objects: number of objects.

    Returns:
        size, the image's [width, height]; objects and boxes, xyxy in its pixels; scores;
        thresholds; and matches, for each threshold the index of the box that suppresses each box,
        or its own index if it is kept (`detops.nms_match`).
    """
    generator = torch.Generator().manual_seed(seed)
    size = torch.tensor(SCENE, dtype=torch.float32)
    extent = 50 + 70 * torch.rand(objects, 2, generator=generator)
    centre = extent / 2 + torch.rand(objects, 2, generator=generator) * (size - extent)
    truth = box_convert(torch.cat([centre, extent], 1), "cxcywh", "xyxy")

    extents = extent.repeat_interleave(CANDIDATES, 0)
    moved = 0.16 * extents * torch.randn(extents.shape, generator=generator)
    scaled = extents * torch.exp(0.18 * torch.randn(extents.shape, generator=generator))
    centres = centre.repeat_interleave(CANDIDATES, 0) + moved
    boxes = box_convert(torch.cat([centres, scaled], 1), "cxcywh", "xyxy")
    boxes = clip_boxes_to_image(boxes, (SCENE[1], SCENE[0]))
    # A misplaced candidate gets a lower score, as it would from a detector.
    off = (moved / extents).abs().sum(1) + (scaled / extents).log().abs().sum(1)
    noise = 0.08 * torch.rand(off.shape, generator=generator)
    scores = (0.98 * torch.exp(-off) + noise).clamp(max=0.99)
    return {
        "size": SCENE,
        "objects": truth.tolist(),
        "boxes": boxes.tolist(),
        "scores": scores.tolist(),
        "thresholds": THRESHOLDS,
        "matches": [nms_match(boxes, scores, threshold).tolist() for threshold in THRESHOLDS],
    }


def roi_align_samples(
    x1: float, y1: float, x2: float, y2: float, bins: int, sampling_ratio: int, aligned: int
) -> dict[str, Any]:
    """Returns the sampling points of RoIAlign, the weights of pixels in bins, and the results.

    The op itself computes the points: on a map that contains its own coordinates, a bilinear sample
    is its position, and with one bin per sample every sample is visible. The weight of a pixel in a
    bin is the value of the bin on a map in which only that pixel is 1.

    Args:
        x1: left border of the box, in pixels of the map.
        y1: upper border.
        x2: right border.
        y2: lower border.
        bins: bins on each axis.
        sampling_ratio: sampling points per bin on each axis.
        aligned: 0 or 1.

    Returns:
        map, the features; samples, [x, y, counts] of each, with counts 0 outside the map; values of
        the bins, row by row; reads, for each bin pairs of a pixel's index and weight.
    """
    box = torch.tensor([[0.0, x1, y1, x2, y2]])
    features = smooth_map(MAP_HEIGHT, MAP_WIDTH)
    position_map = torch.cat(
        [coordinates(MAP_HEIGHT, MAP_WIDTH), torch.ones(1, MAP_HEIGHT, MAP_WIDTH)]
    )
    samples = roi_align(position_map[None], box, bins * sampling_ratio, 1.0, 1, bool(aligned))
    pixels = torch.eye(MAP_HEIGHT * MAP_WIDTH).view(1, -1, MAP_HEIGHT, MAP_WIDTH)
    inputs = torch.cat([features[None, None], pixels], 1)
    pooled = roi_align(inputs, box, bins, 1.0, sampling_ratio, bool(aligned))[0].flatten(1)
    weights = pooled[1:].T
    return {
        "map": features.tolist(),
        "samples": samples[0].flatten(1).T.tolist(),
        "values": pooled[0].tolist(),
        "reads": [[[i, row[i].item()] for i in row.nonzero()[:, 0].tolist()] for row in weights],
    }


def deform_conv2d_samples(
    pattern: str, amount: float, dilation: int, row: int, column: int
) -> dict[str, Any]:
    """Returns where a deformable convolution reads for one position, and where a plain one would.

    The op itself computes the positions: each kernel point is an output channel with weight 1 there
    and 0 elsewhere, so on a map that contains its own coordinates the output is the position read.

    Args:
        pattern: pattern of the offsets, one of PATTERNS.
        amount: size of the offsets, in pixels.
        dilation: pixels between neighbouring kernel points.
        row: row of the output position.
        column: column of the output position.

    Returns:
        map, the features; position [x, y]; regular and moved, [x, y] of each kernel point without
        and with offsets; value and plain, the mean features with and without offsets.
    """
    offsets = offset_pattern(pattern, amount, dilation)
    features = smooth_map(MAP_SIDE, MAP_SIDE)
    points = KERNEL * KERNEL
    # One output channel for x at each kernel point, then for y, and one for the features' mean.
    weight = torch.zeros(2 * points + 1, 3, KERNEL, KERNEL)
    for axis in range(2):
        block = weight[axis * points : (axis + 1) * points, axis]
        block.view(points, points).copy_(torch.eye(points))
    weight[-1, 2] = 1 / points

    input = torch.cat([coordinates(MAP_SIDE, MAP_SIDE), features[None]])[None]

    def read(offset: Tensor) -> Tensor:
        output = deform_conv2d(input, offset, weight, padding=dilation, dilation=dilation)
        return output[0, :, row, column]

    moved, regular = read(offsets), read(torch.zeros_like(offsets))
    return {
        "map": features.tolist(),
        "position": [column, row],
        "regular": regular[:-1].view(2, points).T.tolist(),
        "moved": moved[:-1].view(2, points).T.tolist(),
        "value": moved[-1].item(),
        "plain": regular[-1].item(),
    }


def offset_pattern(pattern: str, amount: float, dilation: int) -> Tensor:
    """Returns offsets [1, 2 * points, MAP_SIDE, MAP_SIDE] as (y, x) of each kernel point."""
    axis = torch.arange(KERNEL) - KERNEL // 2
    unit = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).view(-1, 2).float()
    offsets = torch.zeros(len(unit), 2, MAP_SIDE, MAP_SIDE)
    if pattern == "wider":
        offsets += (amount * unit)[..., None, None]
    elif pattern == "turned":
        # By that many pixels at a kernel point next to the middle.
        angle = torch.tensor(amount / dilation)
        turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
        offsets += (dilation * (unit @ turn - unit))[..., None, None]
    elif pattern == "shifted":
        offsets += amount
    elif pattern == "random":
        generator = torch.Generator().manual_seed(0)
        offsets = amount * (2 * torch.rand(offsets.shape, generator=generator) - 1)
    return offsets.view(1, -1, MAP_SIDE, MAP_SIDE)


def smooth_map(height: int, width: int) -> Tensor:
    """Returns features [height, width] in 0..1 with visible structure; always the same."""
    y, x = coordinates(height, width).flip(0)
    return 0.5 + 0.3 * (x / 2.1).sin() * (y / 1.7).cos() + 0.2 * ((x + 2 * y) / 4.3).sin()


def coordinates(height: int, width: int) -> Tensor:
    """Returns a map [2, height, width] of the x and y of each pixel."""
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack([x, y]).float()


# Ops on the page by name: the function that answers, and the valid query.
OPS: dict[str, tuple[Callable[..., dict[str, Any]], dict[str, Number | Choice]]] = {
    "nms": (nms_scene, {"seed": Number(0, 0, 9999), "objects": Number(5, 1, 12)}),
    "roi_align": (
        roi_align_samples,
        {
            "x1": Number(2.3, 0, MAP_WIDTH),
            "y1": Number(2.6, 0, MAP_HEIGHT),
            "x2": Number(12.1, 0, MAP_WIDTH),
            "y2": Number(9.4, 0, MAP_HEIGHT),
            "bins": Number(3, 1, 7),
            "sampling_ratio": Number(2, 1, 4),
            "aligned": Number(1, 0, 1),
        },
    ),
    "deform_conv2d": (
        deform_conv2d_samples,
        {
            "pattern": Choice("wider", PATTERNS),
            "amount": Number(1.5, 0, 3),
            "dilation": Number(1, 1, 2),
            "row": Number(MAP_SIDE // 2, *POSITION_RANGE),
            "column": Number(MAP_SIDE // 2, *POSITION_RANGE),
        },
    ),
}
