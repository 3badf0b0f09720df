# SPDX-License-Identifier: MIT
"""Labelled shapes on photographs: data with exact masks, generated on demand."""

from __future__ import annotations

import math
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .coco import export_coco
from .detection import DetectionDataset, Target, Transform
from .masks import encode_mask
from .problems import AnnotationError, FileCheck, OnError, Problems, check_choice

CLASSES = ("ellipse", "rectangle", "triangle", "star", "ring", "cross")
# Functions of skimage.data whose files are in its wheel. No photograph is in both splits. Training
# needs many, some with round objects in them: a detector that has seen only a few mistakes wheels
# and eyes in others for shapes.
PHOTOGRAPHS = {
    "train": tuple(
        "astronaut brick camera cell clock coffee coins gravel hubble_deep_field "
        "immunohistochemistry moon page retina rocket text".split()
    ),
    "test": ("chelsea", "stereo_motorcycle", "grass"),
}
MIN_SIDE = 16
MIN_RADIUS = 6.0
RADIUS = (0.09, 0.28)  # fractions of the square root of the image's area
MIN_VISIBLE = 0.4  # minimum fraction of a shape's area not hidden by the border and other shapes
MAX_TRIES = 10
SUBPIXELS = 3
# Minimum ratio of the shorter to the longer axis, per class.
MIN_ASPECT = (0.5, 0.45, 0.7, 0.8, 0.7, 0.75)
CONTRAST = 0.25  # minimum difference of shape and ground in some channel, in 0..1
CACHED_SCENES = 8

Scene = tuple[np.ndarray, np.ndarray, np.ndarray]


class Shapes(DetectionDataset):
    """Ellipses, rectangles, triangles, stars, rings and crosses on real photographs.

    They are rotated, stretched, shaded and textured; some overlap others or extend beyond the
    image. A mask is the visible part of a shape: the pixels of which it covers at least half, minus
    those that later shapes cover. A box is the smallest around its mask. The photographs come from
    scikit-image; the two splits have different ones.

    An item depends only on its index, the split, the seed, size and objects, to the last bit (with
    the same versions of NumPy, Pillow and scikit-image).

    Args:
        split: "train" or "test".
        length: number of images.
        size: side in pixels, or "<height>x<width>", or (height, width).
        objects: maximum number of shapes in an image; at least one is attempted.
        seed: another seed gives another dataset.
        on_error: accepted as by all datasets; nothing here is broken.
        check: likewise.
        masks: include masks in the targets.
        keypoints: must be false: shapes have none.
        transform: see `DetectionDataset`.

    Raises:
        ValueError: an argument is out of range.
        ImportError: scikit-image is not installed.

    Example:
        >>> image, target = Shapes("train", length=1, size=96)[0]
        >>> image.shape, [*target]
        (torch.Size([3, 96, 96]), ['boxes', 'labels', 'image_id', 'masks'])
    """

    def __init__(
        self,
        split: str = "train",
        length: int = 1000,
        size: int | str | tuple[int, int] = 192,
        objects: int = 6,
        seed: int = 0,
        on_error: OnError = "raise",
        check: FileCheck = "header",
        masks: bool | None = True,
        keypoints: bool | None = False,
        transform: Transform | None = None,
    ) -> None:
        check_choice("split", split, tuple(PHOTOGRAPHS))
        self.split, self.size = split, _height_and_width(size)
        numbers = (("length", length, 0), ("objects", objects, 1), ("seed", seed, 0))
        for name, value, minimum in numbers:
            if type(value) is not int or value < minimum:
                raise ValueError(f"{name}: expected an integer from {minimum}, got {value!r}")
        self.objects, self.seed = objects, seed
        height, width = self.size
        images = [
            {"id": index, "file_name": f"{index:06d}.png", "width": width, "height": height}
            for index in range(length)
        ]
        categories = [{"id": label, "name": name} for label, name in enumerate(CLASSES, start=1)]
        path = Path(f"shapes:{split}")
        if keypoints:
            raise AnnotationError(f"{path}: shapes have no keypoints")
        _photograph(PHOTOGRAPHS[split][0])  # fail early if scikit-image is not installed
        # Pass no records yet, because the base class would search for the images' files.
        masks = masks is None or masks
        super().__init__(
            path, path, [], categories, [], Problems(path), on_error, check, masks, False, transform
        )
        self.images = images

    def image(self, index: int) -> Tensor:
        """Returns an image's pixels, uint8 [3, H, W] RGB."""
        # A copy, because a transform may modify it and the scene is cached.
        return torch.from_numpy(self._scene(index)[0].transpose(2, 0, 1).copy())

    def target(self, index: int) -> Target:
        """Returns an image's target: boxes [n, 4], labels [n], image_id, and masks [n, H, W]."""
        _, masks, labels = self._scene(index)
        boxes = torch.tensor([_box(mask) for mask in masks], dtype=torch.float32).reshape(-1, 4)
        own = torch.tensor([self.label_of[label] for label in labels.tolist()], dtype=torch.int64)
        target = {"boxes": boxes, "labels": own, "image_id": index}
        if self.masks:
            target["masks"] = torch.from_numpy(masks.astype(np.uint8))
        return target

    def ground_truth(self) -> dict[str, Any]:
        """Returns the dataset as a COCO dict, masks as run lengths; draws every image once."""
        annotations: list[dict[str, Any]] = []
        for index in range(len(self)):
            target, masks = self.target(index), self._scene(index)[1]
            for box, label, mask in zip(target["boxes"], target["labels"], masks, strict=True):
                x1, y1, x2, y2 = box.tolist()
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": index,
                        "category_id": self.category_ids[int(label) - 1],
                        "bbox": [x1, y1, x2 - x1, y2 - y1],
                        "area": int(mask.sum()),
                        "iscrowd": 0,
                        "segmentation": encode_mask(mask),
                    }
                )
        return {
            "images": self.images,
            "categories": self._categories,
            "annotations": annotations,
        }

    def _cache(self) -> None:
        self._cached = lru_cache(CACHED_SCENES)(self._draw)

    def _scene(self, index: int) -> Scene:
        return self._cached(index)

    def _draw(self, index: int) -> Scene:
        split = [*PHOTOGRAPHS].index(self.split)
        return draw_scene(
            np.random.default_rng([self.seed, split, index]), self.split, self.size, self.objects
        )


def export(folder: str | Path, *arguments: Any, **options: Any) -> Path:
    """Writes generated shapes as a COCO folder with masks; see `export_coco`.

    Args:
        folder: created if missing.
        arguments: positional arguments of `Shapes`.
        options: keyword arguments of `Shapes`.

    Returns:
        Path of the JSON file.
    """
    return export_coco(Shapes(*arguments, **options), folder)


@np.errstate()  # restores the buffer size afterwards
def draw_scene(
    generator: np.random.Generator, split: str, size: tuple[int, int], objects: int
) -> Scene:
    """Draws shapes on a photograph.

    Args:
        generator: source of all random numbers.
        split: split of the photographs.
        size: height and width in pixels.
        objects: maximum number of shapes.

    Returns:
        image uint8 [H, W, 3], masks bool [n, H, W] of the visible part of each shape, labels int64
        [n] from 1.
    """
    # NumPy 2.4 aborts the process if it cannot allocate a loop's buffer. An allocation of 64 KB
    # fails long before one of 4 KB does.
    np.setbufsize(512)
    image = _background(generator, split, size)
    masks: list[np.ndarray] = []
    areas: list[int] = []
    labels: list[int] = []
    for _ in range(int(generator.integers(1, objects + 1))):
        for _ in range(MAX_TRIES):
            kind = int(generator.integers(len(CLASSES)))
            coverage, u, v, window, area = _shape(generator, kind, size)
            mask = np.zeros(size, dtype=bool)
            mask[window] = coverage >= 0.5
            left = [seen & ~mask for seen in masks]
            if mask.sum() >= MIN_VISIBLE * area and all(
                seen.sum() >= MIN_VISIBLE * full for seen, full in zip(left, areas, strict=True)
            ):
                break
        else:
            continue
        masks, areas, labels = [*left, mask], [*areas, area], [*labels, kind + 1]
        ground = image[window]
        paint = _paint(generator, split, u, v, ground[coverage >= 0.5].mean(axis=0))
        ground += (paint - ground) * coverage[:, :, None]
    image += generator.uniform(0, 0.03) * generator.standard_normal(image.shape, np.float32)
    pixels = (image.clip(0, 1) * 255).round().astype(np.uint8)
    return pixels, np.array(masks).reshape(-1, *size), np.array(labels, dtype=np.int64)


def _box(mask: np.ndarray) -> tuple[int, int, int, int]:
    """Returns the box around a mask, up to the far edge of its last pixels."""
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _shape(
    generator: np.random.Generator, kind: int, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[slice, slice], int]:
    """Generates a shape: coverage in 0..1, its own coordinates, window, area before clipping."""
    height, width = size
    low, high = (fraction * math.sqrt(height * width) for fraction in RADIUS)
    radius = max(MIN_RADIUS, math.exp(generator.uniform(math.log(low), math.log(high))))
    centre_y, centre_x = generator.uniform(-0.05, 1.05, 2) * np.array(size)
    angle = generator.uniform(0, 2 * math.pi)
    aspect = generator.uniform(MIN_ASPECT[kind], 1)
    thickness = generator.uniform(0.22, 0.4)

    # The corners of rectangles and crosses lie outside the circle of this radius.
    reach = radius * math.sqrt(2) + 1
    top, left = math.floor(centre_y - reach), math.floor(centre_x - reach)
    side = math.ceil(2 * reach) + 1
    ticks = (np.arange(side * SUBPIXELS) + 0.5) / SUBPIXELS
    y, x = ticks[:, None] + (top - centre_y), ticks[None, :] + (left - centre_x)
    cosine, sine = math.cos(angle) / radius, math.sin(angle) / radius
    u, v = cosine * x + sine * y, (cosine * y - sine * x) / aspect
    inside = _inside(CLASSES[kind], u, v, thickness)
    # Strided sums: a mean over the axes of a four-dimensional view takes five times as long.
    offsets = range(SUBPIXELS)
    parts = np.array([inside[i::SUBPIXELS, j::SUBPIXELS] for i in offsets for j in offsets])
    coverage = parts.sum(axis=0, dtype=np.int8) / len(parts)

    rows = slice(max(0, -top), max(0, min(side, height - top)))
    columns = slice(max(0, -left), max(0, min(side, width - left)))
    window = (
        slice(rows.start + top, max(rows.start, rows.stop) + top),
        slice(columns.start + left, max(columns.start, columns.stop) + left),
    )
    middle = slice(SUBPIXELS // 2, None, SUBPIXELS)
    area = int((coverage >= 0.5).sum())
    own = (grid[middle, middle][rows, columns] for grid in (u, v))
    return coverage[rows, columns], *own, window, area


def _inside(name: str, u: np.ndarray, v: np.ndarray, thickness: float) -> np.ndarray:
    """Returns whether points (u, v) are in a shape of half side or radius 1 about the origin.

    It uses only sums, products and comparisons, which give the same bits everywhere.
    """
    if name == "rectangle":
        return (abs(u) <= 1) & (abs(v) <= 1)
    if name == "cross":
        across, along = np.minimum(abs(u), abs(v)), np.maximum(abs(u), abs(v))
        return (across <= thickness) & (along <= 1)
    if name in ("triangle", "star"):
        corners = 3 if name == "triangle" else 5
        # A pentagram is the set of points that are outside of at most one side of a pentagon.
        crossed = np.zeros(u.shape, dtype=np.int8)
        for k in range(corners):
            turn = 2 * math.pi * k / corners
            distance = math.cos(2 * math.pi / 5) if corners == 5 else 0.5
            crossed += math.cos(turn) * u + math.sin(turn) * v > distance
        return crossed <= (corners == 5)
    square = u * u + v * v
    inside = square <= 1
    return inside & (square >= (1 - 1.3 * thickness) ** 2) if name == "ring" else inside


def _paint(
    generator: np.random.Generator, split: str, u: np.ndarray, v: np.ndarray, ground: np.ndarray
) -> np.ndarray:
    """Returns the colours [h, w, 3] of a textured, shaded shape that contrasts with the ground."""
    for _ in range(MAX_TRIES):
        colour = generator.uniform(0.02, 0.98, 3)
        if np.abs(colour - ground).max() >= CONTRAST:
            break
    other = (colour + generator.uniform(-0.35, 0.35, 3)).clip(0, 1)
    texture = generator.integers(5)
    frequency = generator.uniform(1.5, 4)
    if texture == 1:  # stripes
        blend = np.floor(u * frequency * 2) % 2
    elif texture == 2:  # checks
        blend = (np.floor(u * frequency) + np.floor(v * frequency)) % 2
    elif texture == 3:  # speckles
        blend = generator.random(u.shape)
    elif texture == 4:  # another photograph, in two colours
        blend = _background(generator, split, u.shape).mean(axis=2)
    else:
        blend = np.zeros(u.shape)
    paint = colour + blend[:, :, None] * (other - colour)
    slope_u, slope_v = generator.uniform(-0.35, 0.35, 2)
    return (paint * (1 + slope_u * u + slope_v * v)[:, :, None]).clip(0, 1)


def _background(generator: np.random.Generator, split: str, size: tuple[int, ...]) -> np.ndarray:
    """Returns a random part of a photograph, float64 [h, w, 3] in 0..1."""
    height, width = size
    names = PHOTOGRAPHS[split]
    photograph = _photograph(names[int(generator.integers(len(names)))])
    # The largest window of the same aspect ratio, scaled down randomly.
    scale = min(photograph.height / height, photograph.width / width)
    scale *= generator.uniform(0.35, 1)
    x = generator.uniform(0, photograph.width - width * scale)
    y = generator.uniform(0, photograph.height - height * scale)
    part = photograph.resize(
        (width, height),
        Image.Resampling.BILINEAR,
        (x, y, x + width * scale, y + height * scale),
    )
    pixels = np.asarray(part, dtype=np.float64) / 255
    if generator.random() < 0.5:
        pixels = pixels[:, ::-1]
    return (pixels * generator.uniform(0.6, 1.2) + generator.uniform(-0.1, 0.1)).clip(0, 1)


@cache
def _photograph(name: str) -> Image.Image:
    try:
        from skimage import data
    except ImportError as error:
        raise ImportError(
            "detops.data.shapes requires the photographs of scikit-image: pip install scikit-image"
        ) from error
    pixels = getattr(data, name)()
    return Image.fromarray(pixels[0] if isinstance(pixels, tuple) else pixels).convert("RGB")


def _height_and_width(size: Any) -> tuple[int, int]:
    if isinstance(size, str):
        parts = size.split("x")
        sides = tuple(int(part) if part.isdecimal() else -1 for part in parts)
    else:
        sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(type(s) is int and s >= MIN_SIDE for s in sides):
        raise ValueError(
            f"size: expected a side or (height, width) from {MIN_SIDE} pixels, got {size!r}"
        )
    return sides
