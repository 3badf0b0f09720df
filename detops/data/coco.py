# SPDX-License-Identifier: MIT
"""Datasets in COCO and LVIS format, and export to COCO."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..messages import shown
from .detection import DetectionDataset
from .files import as_on_disk, find_file, read_json, resolve_file
from .problems import EXPECTED_NAME, AnnotationError, Problems, as_integer, is_name

REQUIRED = {
    "images": ("id",),
    "categories": ("id", "name"),
    "annotations": (),
}


class CocoDetection(DetectionDataset):
    """Images and objects of one COCO annotation file.

    Args:
        annotation_file: the JSON file.
        image_dir: folder of the images. By default, the first of these that contains the first
            image: the annotation file's folder; `images` in it; and, if the folder is called
            `annotations`, these in its parent: the folder named by the last part of the file name
            (`instances_val2017.json`: `val2017`, `images/val2017`), `images`, and the parent
            itself. Names that annotation tools have changed are found too: see
            :func:`detops.data.files.resolve_file`.
        options: see `DetectionDataset`: on_error, check, masks, keypoints, transform.

    Raises:
        AnnotationError: the file is missing or not COCO, or, with on_error="raise", something in it
            is broken.

    Example:
        >>> from detops.cli.options import TREE_CROWNS
        >>> dataset = CocoDetection(TREE_CROWNS / "val.json")
        >>> image, target = dataset[0]
        >>> image.shape, target["boxes"].shape
        (torch.Size([3, 1035, 369]), torch.Size([71, 4]))
    """

    def __init__(
        self, annotation_file: str | Path, image_dir: str | Path | None = None, **options: Any
    ) -> None:
        path = Path(annotation_file)
        data = self._read(path)
        folder = Path(image_dir) if image_dir is not None else _image_dir(path, data["images"])
        for image in data["images"]:
            image["file_name"] = _file_name(folder, image)
        contents = (data["images"], data["categories"], data["annotations"])
        super().__init__(path, folder, *contents, Problems(path), **options)

    def _read(self, path: Path) -> dict[str, Any]:
        return read_coco(path)


class LvisDetection(CocoDetection):
    """Images and objects of one LVIS annotation file ("LVIS", Gupta et al., 2019).

    LVIS is COCO with more categories than can be annotated in every image. The records in `images`
    keep what it states about that: `neg_category_ids`, the categories verified to be absent, and
    `not_exhaustive_category_ids`, those with unannotated objects. Images without a file name are
    found by the last two parts of their `coco_url`, or by the last.

    Evaluation is COCO's. It treats unannotated objects as absent, and therefore rates a detector
    lower than LVIS's own evaluation would.

    Args:
        annotation_file: the JSON file.
        image_dir: see `CocoDetection`.
        options: see `DetectionDataset`.

    Example:
        >>> dataset = LvisDetection("lvis_v1_val.json", image_dir="val2017")  # doctest: +SKIP
    """

    @property
    def frequency_groups(self) -> dict[str, tuple[int, ...]]:
        """Labels of the rare ("r"), common ("c") and frequent ("f") categories."""
        return {
            group: tuple(
                label
                for label, category in enumerate(self._categories, start=1)
                if category.get("frequency") == group
            )
            for group in ("r", "c", "f")
        }

    def _read(self, path: Path) -> dict[str, Any]:
        data = read_coco(path)
        known = {category["id"] for category in data["categories"]}
        for image in data["images"]:
            for key in ("neg_category_ids", "not_exhaustive_category_ids"):
                ids = image.get(key, [])
                ids = image[key] = list(map(as_integer, ids)) if isinstance(ids, list) else None
                if ids is None or not all(_is_id(id) and id in known for id in ids):
                    raise AnnotationError(
                        f"{path}: image {image['id']}: {key} names an unknown category"
                    )
        return data


def read_coco(path: Path) -> dict[str, Any]:
    """Reads a COCO file: lists of dicts under images, categories and annotations, with their ids.

    Raises:
        AnnotationError: the file cannot be read or is not COCO.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise AnnotationError(f"{path}: expected a COCO object, got {type(data).__name__}")
    for key, fields in REQUIRED.items():
        entries = data.get(key)
        if not isinstance(entries, list):
            raise AnnotationError(f"{path}: not COCO format: no list '{key}'")
        for number, entry in enumerate(entries):
            if not isinstance(entry, dict):
                raise AnnotationError(
                    f"{path}: {key}[{number}] is not an object, but {shown(entry)}"
                )
            missing = [field for field in fields if field not in entry]
            if key == "images" and not {"file_name", "coco_url"} & entry.keys():
                missing.append("file_name")
            if missing:
                raise AnnotationError(f"{path}: {key}[{number}] lacks {', '.join(missing)}")
            if key == "categories" and not is_name(entry["name"]):
                got = f"got {shown(entry['name'])}"
                raise AnnotationError(f"{path}: {key}[{number}]: {EXPECTED_NAME}, {got}")
            if "id" in fields:
                entry["id"] = as_integer(entry["id"])
                if not _is_id(entry["id"]):
                    raise AnnotationError(f"{path}: {key}[{number}]: id is {shown(entry['id'])}")
    if not all(isinstance(category["name"], str) for category in data["categories"]):
        # Keep names that are JSON numbers as written: 1.50 is not 1.5.
        written = read_json(path, parse_float=str, parse_int=str)["categories"]
        for category, same in zip(data["categories"], written, strict=True):
            category["name"] = same["name"]
    ids = [category["id"] for category in data["categories"]]
    if len(set(ids)) < len(ids) or len({type(id) for id in ids}) > 1:
        raise AnnotationError(f"{path}: category ids are not all different, or of several types")
    return data


def export_coco(dataset: DetectionDataset, folder: str | Path) -> Path:
    """Writes a dataset as a COCO folder: `annotations.json`, and PNG images in `images`.

    Reading it back gives the same dataset, to the last bit.

    Args:
        dataset: a dataset of any format; masks are written only if it was opened with masks.
        folder: created if missing; existing files of the same names are overwritten.

    Returns:
        Path of the JSON file.

    Example:
        >>> export_coco(detops.data.open_dataset("tree_crowns/val.json"), "copy").as_posix()
        'copy/annotations.json'
    """
    from torchvision.io import write_png

    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    truth = dataset.ground_truth()
    images = []
    for index, image in enumerate(truth["images"]):
        # Numbered, because images of different folders may have the same name.
        name = f"{index:06d}.png"
        write_png(dataset.image(index), str(folder / "images" / name), compression_level=3)
        images.append(image | {"file_name": name})
    annotations = [a | {"id": n} for n, a in enumerate(truth["annotations"], start=1)]
    for annotation in annotations:
        rle = annotation.get("segmentation")
        if isinstance(rle, dict) and isinstance(rle["counts"], bytes):
            annotation["segmentation"] = rle | {"counts": rle["counts"].decode("ascii")}
    path = folder / "annotations.json"
    data = truth | {"images": images, "annotations": annotations}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def _is_id(value: object) -> bool:
    return isinstance(value, int | str)


def _image_dir(path: Path, images: Sequence[dict]) -> Path:
    folder = path.parent
    candidates = [folder, folder / "images"]
    if folder.name == "annotations":
        root, split = folder.parent, path.stem.rpartition("_")[2]
        candidates += [root / split, root / "images" / split, root / "images", root]
    for candidate in map(as_on_disk, candidates):
        for image in images[:1]:
            name = _recorded_name(candidate, image)
            if isinstance(name, str) and find_file(candidate, name):
                return candidate
    return folder


def _file_name(folder: Path, image: dict) -> Any:
    """Returns the name of an image's file under the folder, or the record's if it is no text."""
    name = _recorded_name(folder, image)
    return resolve_file(folder, name) if isinstance(name, str) else name


def _recorded_name(folder: Path, image: dict) -> Any:
    """Returns the record's name of an image's file, or the one that its address ends in."""
    return image["file_name"] if "file_name" in image else _file_of_url(folder, image["coco_url"])


def _file_of_url(folder: Path, url: Any) -> Any:
    """Returns the file name in an image's URL: its last two parts if they exist, else the last."""
    if not isinstance(url, str):
        return url
    parts = url.split("/")[-2:]
    return find_file(folder, "/".join(parts)) or parts[-1]
