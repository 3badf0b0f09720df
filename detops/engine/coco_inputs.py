# SPDX-License-Identifier: MIT
"""Completes ground truth and detections with the fields that pycocotools reads."""

from __future__ import annotations

import contextlib
import math
from typing import Any

from ..data.detection import annotated_box, is_crowd
from ..data.masks import SegmentationError, to_rle
from ..data.problems import BrokenPart, annotated_size, as_integer, is_number
from ..messages import shown

Record = dict[str, Any]
INTEGER_FIELDS = ("id", "image_id", "category_id", "width", "height")
PLAIN_TYPES = {int, float, str, bool, list, tuple, type(None)}  # need no conversion


def complete_truth(ground_truth: Record) -> Record:
    """Returns a COCO dict whose annotations all have bbox, area and iscrowd.

    Accepts the missing fields and spellings that `DetectionDataset` accepts, and NumPy and torch
    values.

    Raises:
        ValueError: an annotation has neither a box nor a segmentation, or a part of it is broken.
    """
    # annToRLE reads the sizes of all images, even if it does not use them.
    images = [{"width": None, "height": None} | _plain(image) for image in ground_truth["images"]]
    sizes = {image["id"]: annotated_size(image) for image in images}
    annotations = []
    for number, record in enumerate(ground_truth["annotations"], start=1):
        annotation = _plain(record)
        try:
            annotations.append(annotation | _required_fields(annotation, sizes))
        except (BrokenPart, SegmentationError) as error:
            where = f"ground_truth: annotation {shown(annotation.get('id', f'number {number}'))}"
            raise ValueError(f"{where}: {': '.join(filter(None, error.args))}") from error
    categories = [_plain(category) for category in ground_truth["categories"]]
    parts = {"images": images, "categories": categories, "annotations": annotations}
    return ground_truth | parts


def complete_detections(detections: list[Record]) -> list[Record]:
    """Returns COCO results that all have bbox, area and iscrowd; bbox is None if unknown.

    Raises:
        ValueError: a detection has no image_id, category_id or score.
    """
    completed = []
    for number, record in enumerate(detections):
        found = _plain(record)
        is_scored = isinstance(found.get("score"), int | float)
        if not (is_scored and _is_id(found.get("image_id")) and _is_id(found.get("category_id"))):
            expected = "expected image_id, category_id and a score"
            raise ValueError(f"detections[{number}]: {expected}, got {shown(record)}")
        box = None
        with contextlib.suppress(SegmentationError):  # an empty mask has no box
            box = annotated_box(found, *_mask_size(found, None))
        area = box[2] * box[3] if box else 0
        box = list(box) if box else None
        completed.append(found | {"bbox": box, "iscrowd": 0, "area": area})
    return completed


def check_drawable(entries: list[Record], images: list[Record]) -> None:
    """Raises ValueError if an entry has polygons and its image has no size to draw them in."""
    unsized = {image["id"]: image for image in images if annotated_size(image) is None}
    for entry in entries:
        image = unsized.get(entry["image_id"])
        if image is not None and isinstance(entry["segmentation"], list):
            raise ValueError(
                f"ground_truth: image {shown(image['id'])}: expected the width and height that its "
                f"polygons are drawn in, got {shown(image['width'])} x {shown(image['height'])}"
            )


def _plain(record: Record) -> Record:
    """Converts arrays and tensors to lists and numbers, and whole `INTEGER_FIELDS` to integers."""
    if PLAIN_TYPES.issuperset(map(type, record.values())):
        if float not in [type(record.get(key)) for key in INTEGER_FIELDS]:
            return record
    plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in record.items()}
    segmentation = plain.get("segmentation")
    if isinstance(segmentation, dict) and isinstance(segmentation.get("size"), list | tuple):
        plain["segmentation"] = segmentation | {"size": [*map(as_integer, segmentation["size"])]}
    return plain | {key: as_integer(plain[key]) for key in INTEGER_FIELDS if key in plain}


def _required_fields(annotation: Record, sizes: dict[Any, tuple[Any, Any] | None]) -> Record:
    """Returns bbox, area and iscrowd of an annotation."""
    for key in ("image_id", "category_id"):
        if not _is_id(annotation.get(key)):
            raise BrokenPart(f"expected a value of {key}, got {shown(annotation.get(key))}")
    height, width = _mask_size(annotation, sizes.get(annotation["image_id"]))
    box = annotated_box(annotation, height, width)
    if not isinstance(box, list | tuple) or len(box) != 4 or not all(map(is_number, box)):
        raise BrokenPart("box is not four finite numbers", f"bbox {shown(box)}")
    area = annotation.get("area")
    if not is_number(area):
        area = _mask_area(annotation, height, width) or box[2] * box[3]
    return {"bbox": list(box), "area": area, "iscrowd": int(is_crowd(annotation))}


def _is_id(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _mask_size(annotation: Record, size: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """Returns the height and width of a segmentation; infinite for polygons in an unknown size."""
    segmentation = annotation.get("segmentation")
    if isinstance(segmentation, dict):
        rle_size = segmentation.get("size")
        return (
            tuple(rle_size)
            if isinstance(rle_size, list | tuple) and len(rle_size) == 2
            else (None, None)
        )
    return (math.inf, math.inf) if size is None else size[::-1]


def _mask_area(annotation: Record, height: Any, width: Any) -> float | None:
    from pycocotools import mask as coco

    if not annotation.get("segmentation") or height == math.inf:
        return None
    try:
        return float(coco.area(to_rle(annotation["segmentation"], height, width)))
    except SegmentationError:
        return None
