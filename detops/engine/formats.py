# SPDX-License-Identifier: MIT
"""Output formats of `detops detect`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from PIL import Image
from torch import Tensor

from ..ops import masks_to_rle
from .checkpoint import writing

Entry = dict[str, Any]
CSV_COLUMNS = ("image", "frame", "name", "label", "score", "x1", "y1", "x2", "y2")


def image_entry(name: str, shape: Sequence[int], found: dict[str, Any]) -> Entry:
    """Returns the JSON entry of an image.

    Args:
        name: name of the image.
        shape: shape of the image, ``[3, H, W]``.
        found: result of `Detector.detect`.

    Returns:
        The image's name and size. For each detection, its box (x1, y1, x2, y2), name, label (from
        1) and score; if present, its mask (compressed run lengths), keypoints (COCO's x, y,
        visibility each) and keypoint_scores (logits).
    """
    columns = {"box": found["boxes"].tolist(), "name": found["names"]}
    columns["label"], columns["score"] = found["labels"].tolist(), found["scores"].tolist()
    if "masks" in found:
        columns["mask"] = masks_to_rle(found["masks"][:, 0])
    if "keypoints" in found:
        columns["keypoints"] = found["keypoints"].flatten(1).tolist()
    if "keypoints_scores" in found:
        columns["keypoint_scores"] = found["keypoints_scores"].tolist()
    rows = zip(*columns.values(), strict=True)
    return {
        "image": name,
        "width": shape[2],
        "height": shape[1],
        "detections": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def write_json(file: TextIO, entries: Iterable[Entry], order: Sequence[str]) -> None:
    """Writes the entries as one array, one line each."""
    _write_array(file, entries)


def write_coco(file: TextIO, entries: Iterable[Entry], order: Sequence[str]) -> None:
    """Writes COCO results: an array of detections with boxes as x, y, width, height.

    Args:
        file: output file.
        entries: entries of images and frames.
        order: names of the inputs, whose ids come from `coco_image_ids`. Other images and all
            frames are numbered after the highest id.
    """
    image_ids = coco_image_ids(order)
    next_id = max(image_ids.values(), default=0) + 1

    def results() -> Iterator[Entry]:
        nonlocal next_id
        for entry in entries:
            image_id = image_ids.get(entry["image"]) if "frame" not in entry else None
            if image_id is None:
                image_id, next_id = next_id, next_id + 1
            for found in entry["detections"]:
                x1, y1, x2, y2 = found["box"]
                result = {"image_id": image_id, "category_id": found["label"]}
                result |= {"bbox": [x1, y1, x2 - x1, y2 - y1], "score": found["score"]}
                result |= {"segmentation": found["mask"]} if "mask" in found else {}
                result |= {"keypoints": found["keypoints"]} if "keypoints" in found else {}
                yield result

    _write_array(file, results())


def write_csv(file: TextIO, entries: Iterable[Entry], order: Sequence[str]) -> None:
    """Writes a table of the boxes with a header line."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for entry in entries:
        for found in entry["detections"]:
            what = found["name"], found["label"], found["score"]
            table.writerow((entry["image"], entry.get("frame"), *what, *found["box"]))


TABLES: dict[str, Callable[[TextIO, Iterable[Entry], Sequence[str]], None]] = {
    "json": write_json,
    "coco": write_coco,
    "csv": write_csv,
}


def write_table(kind: str, path: Path, entries: Iterable[Entry], order: Sequence[str]) -> None:
    """Writes all detections to one file.

    Args:
        kind: one of `TABLES`.
        path: the file.
        entries: entries of images and frames.
        order: names of the inputs.

    Raises:
        OutputError: the file cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # File names that are not valid Unicode are written as their original bytes.
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            TABLES[kind](file, (entry for entry in entries if "detections" in entry), order)


def coco_image_ids(names: Sequence[str]) -> dict[str, int]:
    """Returns COCO image ids: the numbers in the file names, or else 1, 2, 3 in order.

    >>> coco_image_ids(["val/000000000139.jpg", "val/000000000285.jpg"])
    {'val/000000000139.jpg': 139, 'val/000000000285.jpg': 285}
    >>> coco_image_ids(["a.jpg", "7.jpg"])
    {'a.jpg': 1, '7.jpg': 2}
    """
    stems = [Path(name).stem for name in names]
    if all(stem.isascii() and stem.isdecimal() for stem in stems):
        numbers = [int(stem) for stem in stems]
        if len(set(numbers)) == len(numbers):
            return dict(zip(names, numbers, strict=True))
    return {name: number for number, name in enumerate(names, 1)}


def write_yolo(path: Path, shape: Sequence[int], found: dict[str, Any]) -> None:
    """Writes YOLO text: class (from 0), centre, width and height as fractions, and score.

    Args:
        path: the text file; empty if nothing is found.
        shape: shape of the image, ``[3, H, W]``.
        found: result of `Detector.detect`.

    Raises:
        OutputError: the file cannot be written.
    """
    height, width = shape[1:]
    lines = []
    columns = found["labels"].tolist(), found["boxes"].tolist(), found["scores"].tolist()
    for label, (x1, y1, x2, y2), score in zip(*columns, strict=True):
        centre = (x1 + x2) / 2 / width, (y1 + y2) / 2 / height
        values = *centre, (x2 - x1) / width, (y2 - y1) / height, score
        lines.append(f"{label - 1} " + " ".join(f"{value:.6f}" for value in values) + "\n")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def write_crops(folder: Path, stem: str, pixels: Tensor, found: dict[str, Any]) -> None:
    """Writes an image of each detection to a folder for its class.

    Args:
        folder: parent of the class folders.
        stem: prefix of the file names. A number follows, from 1, by descending score.
        pixels: the image, uint8 ``[3, H, W]``.
        found: result of `Detector.detect`. Boxes that contain no pixel of the image are skipped.

    Raises:
        OutputError: an image cannot be written.
    """
    height, width = pixels.shape[1:]
    for number, (name, box) in enumerate(zip(found["names"], found["boxes"], strict=True), 1):
        x1, y1 = (max(0, int(value)) for value in box[:2].floor().tolist())
        x2, y2 = box[2:].ceil().tolist()
        crop = pixels[:, y1 : min(height, max(y1, int(y2))), x1 : min(width, max(x1, int(x2)))]
        if crop.numel() == 0:
            continue
        # Replace characters that a file name cannot or should not contain.
        path = folder / re.sub(r"[^\w -]", "_", name) / f"{stem}_{number}.png"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(crop.permute(1, 2, 0).numpy()).save(path)


def _write_array(file: TextIO, values: Iterable[Entry]) -> None:
    separator = "["
    for value in values:
        file.write(f"{separator}\n{json.dumps(value)}")
        separator = ","
    file.write("[]\n" if separator == "[" else "\n]\n")
