# SPDX-License-Identifier: MIT
"""Datasets exported by Label Studio as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..messages import shown
from .detection import DetectionDataset, number_categories
from .files import read_json, resolve_file
from .masks import rotated_corners
from .problems import (
    AnnotationError,
    Problems,
    annotated_size,
    as_integer,
    is_name,
    is_number,
    known_size,
)

SHAPES = ("rectanglelabels", "polygonlabels")
ORIGINAL = "original_"  # prefix of the image's width and height in a region
RECTANGLE = ("x", "y", "width", "height")


class LabelStudioDetection(DetectionDataset):
    """Images and objects of a file that Label Studio exports as "JSON".

    Rectangles (also rotated ones) and polygons are read. Regions of other kinds, and those without
    exactly one label, count as broken. Cancelled annotations of a task are skipped; if several
    remain, the one marked as ground truth is used. Predictions are not read. Categories are
    `names`, or the labels that occur, in alphabetical order. `image_id` is the id of the task.

    An image is searched for by its name in Label Studio, ``1a2b3c4d-a%20b.jpg``, then by its
    original name, ``a b.jpg``: see :func:`detops.data.files.resolve_file`.

    Args:
        annotation_file: the JSON file.
        image_dir: folder of the images; by default `images` next to the file if it exists, else the
            file's folder.
        image_key: name of the image in the labelling configuration, without the ``$`` of
            ``$image``.
        names: the categories, as a list or as text with commas.
        options: see `DetectionDataset`: on_error, check, masks, transform.

    Raises:
        AnnotationError: the file is missing or not in Label Studio format, or, with
            on_error="raise", something in it is broken.

    Example:
        >>> import json
        >>> from PIL import Image
        >>> Image.new("RGB", (40, 30)).save("a.png")
        >>> value = {"x": 40, "y": 40, "width": 20, "height": 20, "rectanglelabels": ["tree"]}
        >>> region = {"type": "rectanglelabels", "original_width": 40, "original_height": 30}
        >>> annotations = [{"result": [region | {"value": value}]}]
        >>> task = {"id": 1, "data": {"image": "a.png"}, "annotations": annotations}
        >>> length = Path("export.json").write_text(json.dumps([task]))
        >>> LabelStudioDetection("export.json")[0][1]["boxes"]
        tensor([[16., 12., 24., 18.]])
    """

    def __init__(
        self,
        annotation_file: str | Path,
        image_dir: str | Path | None = None,
        image_key: str = "image",
        names: list[str] | str | None = None,
        **options: Any,
    ) -> None:
        path = Path(annotation_file)
        default_dir = path.parent / "images"
        folder = Path(image_dir or (default_dir if default_dir.is_dir() else path.parent))
        problems = Problems(path)
        images: list[dict] = []
        objects: list[dict] = []
        for number, task in enumerate(_read(path), start=1):
            id = as_integer(task.get("id", number))
            try:
                image, regions = _task(task, id, image_key)
            except AnnotationError as error:
                problems.add(f"task {id}", "broken task", str(error))
                continue
            image["file_name"] = resolve_file(folder, image["file_name"])
            images.append(image)
            objects += _objects(regions, image, folder, problems)
        if names is None:
            names = sorted({found["category_id"] for found in objects})
        names = names.split(",") if isinstance(names, str) else names
        categories = number_categories(names, objects)
        super().__init__(path, folder, images, categories, objects, problems, **options)


def _read(path: Path) -> list[dict[str, Any]]:
    tasks = read_json(path)
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise AnnotationError(f"{path}: not in Label Studio format: expected a list of tasks")
    if not all(isinstance(task.get("annotations"), list) for task in tasks):
        raise AnnotationError(
            f'{path}: a task has no list of annotations: export as "JSON", not as "JSON-MIN"'
        )
    return tasks


def _task(task: dict[str, Any], id: Any, image_key: str) -> tuple[dict[str, Any], list[Any]]:
    """Returns the record of a task's image, and the regions in it."""
    if not isinstance(id, int | str):
        raise AnnotationError(f"id is {shown(id)}")
    data = task.get("data")
    name = data.get(image_key) if isinstance(data, dict) else None
    if not isinstance(name, str):
        raise AnnotationError(f"no {image_key!r} in its data {shown(data)}")
    completed = [
        a for a in task["annotations"] if isinstance(a, dict) and not a.get("was_cancelled")
    ]
    if len(completed) > 1:
        completed = [a for a in completed if a.get("ground_truth")]
    if len(completed) != 1 or not isinstance(completed[0].get("result"), list):
        raise AnnotationError("expected one annotation, or one that is marked as ground truth")
    regions = completed[0]["result"]
    sizes = (annotated_size(region, ORIGINAL) for region in regions if isinstance(region, dict))
    width, height = next(filter(None, sizes), (None, None))
    return {"id": id, "file_name": name, "width": width, "height": height}, regions


def _objects(
    regions: list[Any], image: dict[str, Any], folder: Path, problems: Problems
) -> Iterator[dict[str, Any]]:
    for number, region in enumerate(regions, start=1):
        where = f"task {image['id']}, region {number}"
        kind = region.get("type") if isinstance(region, dict) else None
        if kind not in SHAPES:
            problems.add(where, "unsupported region", shown(kind))
            continue
        value = region.get("value")
        labels = value.get(kind) if isinstance(value, dict) else None
        if not (isinstance(labels, list) and len(labels) == 1 and _is_label(labels[0])):
            problems.add(where, "expected one label", shown(labels))
            continue
        size = annotated_size(region, ORIGINAL) or known_size(image, folder)
        # An image file that cannot be read is reported separately.
        geometry = _geometry(region, value, size) if size else {}
        if geometry is None:
            problems.add(where, "broken region", f"{kind} {shown(value)}")
            continue
        yield {"image_id": image["id"], "category_id": labels[0], "where": where} | geometry


def _geometry(
    region: dict[str, Any], value: dict[str, Any], sides: tuple[Any, Any]
) -> dict[str, Any] | None:
    """Converts a region from percent of the image to COCO fields in pixels; None if broken."""
    if not all(map(is_number, sides)):
        return None
    scale_x, scale_y = (side / 100 for side in sides)
    if region["type"] == "polygonlabels":
        points = value.get("points")
        if not isinstance(points, list) or not all(map(_is_point, points)):
            return None
        return {"segmentation": [[v for x, y in points for v in (x * scale_x, y * scale_y)]]}
    numbers: list[Any] = [value.get(key) for key in RECTANGLE]
    angle = value.get("rotation") or 0
    if not all(map(is_number, [*numbers, angle])):
        return None
    x, y, width, height = numbers
    box = [x * scale_x, y * scale_y, width * scale_x, height * scale_y]
    if angle % 360 == 0:
        return {"bbox": box}
    return {"segmentation": [rotated_corners(box, angle, (box[0], box[1]))]}


def _is_label(value: Any) -> bool:
    return isinstance(value, str) and is_name(value)


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(is_number, point))
