# SPDX-License-Identifier: MIT
"""Segmentations of COCO annotations: polygons and run lengths, checked and unified."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .problems import is_number

RLE = dict[str, Any]
# Characters of a compressed number, 5 bits each: enough for 2^32 pixels and a sign.
MAX_NUMBER_LENGTH = 7


class SegmentationError(ValueError):
    """A segmentation that is empty, malformed or impossible."""


def to_rle(segmentation: Any, height: int, width: int) -> RLE:
    """Converts a segmentation to compressed run lengths.

    Args:
        segmentation: a list of polygons [x, y, x, y, ...], which are clipped to the image and may
            exceed it by up to its own size; or run lengths: `counts`, a list of integers or COCO's
            compressed text, with `size` [height, width].
        height: height of the image in pixels.
        width: width of the image in pixels.

    Returns:
        `size` and compressed `counts`, as accepted by pycocotools.

    Raises:
        SegmentationError: the segmentation has none of these forms, does not fit the image, or
            covers no pixel.
    """
    from pycocotools import mask as coco

    if isinstance(segmentation, list):
        _check_polygons(segmentation, height, width)
        rle = coco.merge(coco.frPyObjects(segmentation, height, width))
    elif isinstance(segmentation, dict):
        # pycocotools writes past its buffers if run lengths do not add up, so check their sum here.
        counts = _run_lengths(segmentation, height, width)
        rle = coco.frPyObjects({"size": [height, width], "counts": counts}, height, width)
    else:
        raise SegmentationError(
            f"expected polygons or run lengths, got {type(segmentation).__name__}"
        )
    if coco.area(rle) == 0:
        raise SegmentationError("covers no pixel")
    return rle


def enclosing_box(segmentation: Any, height: Any, width: Any) -> list[float]:
    """Returns the box (x, y, width, height) around a segmentation; see `to_rle`.

    For polygons it is the box around their vertices, as in COCO, and their image may be infinite.
    """
    from pycocotools import mask as coco

    if not isinstance(segmentation, list):
        return coco.toBbox(to_rle(segmentation, height, width)).tolist()
    _check_polygons(segmentation, height, width)
    x, y = ([value for polygon in segmentation for value in polygon[i::2]] for i in (0, 1))
    return [min(x), min(y), max(x) - min(x), max(y) - min(y)]


def rotated_corners(box: list[float], angle: float, about: tuple[float, float]) -> list[float]:
    """Returns the corners of a rotated box as a polygon [x, y, x, y, ...].

    Args:
        box: x, y, width, height before rotation.
        angle: degrees, clockwise as seen in the image.
        about: centre of rotation.

    >>> rotated_corners([0, 0, 2, 1], 180, (0, 0))[:4]
    [0.0, 0.0, -2.0, 0.0]
    """
    x, y, w, h = box
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    polygon = []
    for corner_x, corner_y in ((x, y), (x + w, y), (x + w, y + h), (x, y + h)):
        dx, dy = corner_x - about[0], corner_y - about[1]
        polygon += [about[0] + dx * cosine - dy * sine, about[1] + dx * sine + dy * cosine]
    return [round(value, 6) + 0.0 for value in polygon]


def decode_masks(rles: Sequence[RLE], height: int, width: int) -> Tensor:
    """Decodes compressed run lengths to masks uint8 [n, height, width]."""
    from pycocotools import mask as coco

    if len(rles) == 0:
        return torch.zeros(0, height, width, dtype=torch.uint8)
    columns = coco.decode(list(rles))  # [height, width, n], first index fastest
    return torch.from_numpy(np.ascontiguousarray(columns.transpose(2, 0, 1)))


def encode_mask(mask: np.ndarray) -> RLE:
    """Encodes a mask [height, width] as compressed run lengths, ready for `json.dump`."""
    from pycocotools import mask as coco

    return _as_text(coco.encode(np.asfortranarray(mask, dtype=np.uint8)))


def encode_rows(
    counts: Sequence[int], box: tuple[int, int, int, int], height: int, width: int
) -> RLE:
    """Converts row-wise run lengths within a box to those of the whole image, as in `encode_mask`.

    Its arrays have only the rows in which a run ends, so memory does not grow with the heights of
    box and image.

    Args:
        counts: run lengths, zeros first; they add up to the box's area.
        box: left, top, width, height; within the image.
        height: height of the image in pixels.
        width: width of the image in pixels.
    """
    from pycocotools import mask as coco

    left, top, row_length, _ = box
    runs = np.array(counts, dtype=np.int64)
    starts, ends = np.cumsum(runs) - runs, np.cumsum(runs)
    # All full rows within a run are equal, so keep one of them.
    extra_rows = np.maximum(ends // row_length + -starts // row_length - 1, 0)
    runs -= extra_rows * row_length
    rows = np.repeat(np.arange(len(runs), dtype=np.int8) & 1, runs).reshape(-1, row_length)
    heights = np.ones(len(rows), dtype=np.int64)
    firsts = -((runs - np.cumsum(runs)) // row_length)
    heights[firsts[extra_rows > 0]] += extra_rows[extra_rows > 0]
    below = np.append(0, np.cumsum(heights))  # row of each edge, relative to the top of the box
    steps = np.diff(np.pad(rows.T, ((0, 0), (1, 1))), axis=1)
    columns, edges = np.nonzero(steps)
    positions = (left + columns) * height + top + below[edges]
    # Two edges at one position, the end of a column and the start of the next, cancel out.
    changes = np.setxor1d(
        positions[steps[columns, edges] > 0], positions[steps[columns, edges] < 0]
    )
    columnwise = np.diff(changes, prepend=0, append=height * width).tolist()
    if columnwise[-1] == 0:
        columnwise.pop()
    rle = {"size": [height, width], "counts": columnwise}
    return _as_text(coco.frPyObjects(rle, height, width))


def _as_text(rle: RLE) -> RLE:
    return {"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")}


def _check_polygons(polygons: list, height: float, width: float) -> None:
    if not polygons:
        raise SegmentationError("has no polygon")
    for number, polygon in enumerate(polygons, start=1):
        if not isinstance(polygon, list) or not all(map(is_number, polygon)):
            raise SegmentationError(f"polygon {number} is not a list of finite numbers")
        if len(polygon) < 6 or len(polygon) % 2:
            raise SegmentationError(
                f"polygon {number} has {len(polygon)} numbers, not three or more pairs"
            )
        for name, values, limit in (("x", polygon[::2], width), ("y", polygon[1::2], height)):
            # The time to draw a polygon grows with the length of its edges.
            if min(values) < -limit or max(values) > 2 * limit:
                raise SegmentationError(
                    f"polygon {number} is far outside the image: {name} from {min(values)} to "
                    f"{max(values)}, the image has {limit} pixels"
                )


def _run_lengths(rle: dict, height: int, width: int) -> list[int]:
    size = rle.get("size")
    counts: Any = rle.get("counts")
    if not isinstance(size, list | tuple) or list(size) != [height, width]:
        raise SegmentationError(f"run lengths of size {size}, the image has [{height}, {width}]")
    if isinstance(counts, bytes):
        counts = counts.decode("latin-1")
    if isinstance(counts, str):
        counts = _decompress(counts)
    is_valid = isinstance(counts, list) and all(type(c) is int and c >= 0 for c in counts)
    if not is_valid:
        raise SegmentationError("run lengths are not non-negative integers")
    pixels = height * width
    # Checked before the sum: the sum of thousand-digit integers is too long to print.
    if max(counts, default=0) > pixels:
        raise SegmentationError(f"a run length exceeds the image's {pixels} pixels")
    if sum(counts) != pixels:
        raise SegmentationError(
            f"run lengths add up to {sum(counts)}, the image has {pixels} pixels"
        )
    return counts


def _decompress(text: str) -> list[int]:
    """Decodes COCO's compressed text: 5 bits per character, lowest first, and a continuation bit.

    From the fourth number on, each is stored as the difference to the one two positions before it.
    """
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise SegmentationError(f"run lengths contain the character {character!r}")
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            if shift == 5 * MAX_NUMBER_LENGTH:
                raise SegmentationError(
                    f"run lengths contain a number of more than {MAX_NUMBER_LENGTH} characters"
                )
            continue
        if bits & 16:
            value -= 1 << shift
        counts.append(value + counts[-2] if len(counts) > 2 else value)
        value = shift = 0
    if shift:
        raise SegmentationError("run lengths end within a number")
    return counts
