# SPDX-License-Identifier: MIT
"""Datasets in YOLO format: one text file of labels per image."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..messages import shown
from .detection import DetectionDataset
from .files import (
    MAX_PATH_LENGTH,
    as_on_disk,
    find_file,
    is_yaml,
    parse_integer,
    read_lines,
    relative_name,
)
from .image import IMAGE_SUFFIXES
from .problems import EXPECTED_NAME, AnnotationError, Problems, image_file_reports, is_name

# Files that list the classes: Ultralytics and Roboflow, Label Studio, CVAT's "YOLO 1.1".
CLASS_FILES = ("data.yaml", "data.yml", "dataset.yaml", "classes.txt", "obj.names")
SPLITS = {"train": ("train",), "val": ("val", "valid"), "test": ("test",)}
MAX_ENTRIES = 10_000_000  # limit for a split's folder, including its subfolders
# YAML spellings: never a path, but possibly a class name.
YAML_NULLS = ("~", "null", "Null", "NULL")
# Maximum absolute value of coordinates, which are fractions of the image. It allows for points up
# to one image size beyond the image.
MAX_COORDINATE = 2


class YoloDetection(DetectionDataset):
    """Images and objects of a folder in YOLO format.

    Each line of a label file is a box, ``class cx cy width height``, or a polygon, ``class x y x y
    x y ...``. Coordinates are fractions of the image's sides, and classes are counted from 0. The
    labels of ``.../images/a.jpg`` are in ``.../labels/a.txt`` or, if that does not exist, next to
    the image. An image without a label file has no objects; a label file without an image, in the
    folders of a split, is broken. `image_id` is the image's name in the folder.

    Splits are those of `data.yaml`: ``train``, ``val`` and ``test`` are each a folder, a list of
    images, or several of them, relative to ``path`` or the file. Folders may begin with one ``../``
    too many, as Roboflow writes them. If it names no split, everything in `images` is train.
    Without `data.yaml`, classes are the lines of `classes.txt` (as exported by Label Studio) or of
    `obj.names` (by CVAT, which lists images in `train.txt`).

    Args:
        root: the folder, or the file that lists the classes.
        split: train, val or test; by default train, or the only one.
        options: see `DetectionDataset`: on_error, check, masks, transform.

    Raises:
        AnnotationError: the file, a class or the split is missing, the dataset contains keypoints,
            or, with on_error="raise", something in it is broken.

    Example:
        >>> from PIL import Image
        >>> folders = [Path(name).mkdir() for name in ("images", "labels")]
        >>> Image.new("RGB", (40, 30)).save("images/a.png")
        >>> lines = Path("labels/a.txt").write_text("0 0.5 0.5 0.2 0.2")
        >>> lines = Path("data.yaml").write_text("{train: images, names: [tree]}")
        >>> YoloDetection("data.yaml")[0][1]["boxes"]
        tensor([[16., 12., 24., 18.]])
    """

    def __init__(self, root: str | Path, split: str | None = None, **options: Any) -> None:
        path = class_file(Path(root))
        folder = path.parent
        names, settings = _read_class_file(path)
        problems = Problems(Path(root))
        files = _images(path, settings, split, problems)
        sizes = [report.size for report in image_file_reports(((f, None) for f in files), "exists")]
        images: list[dict] = []
        objects: list[dict] = []
        for file, size in zip(files, sizes, strict=True):
            name = relative_name(file, folder)
            width, height = size or (None, None)
            images.append({"id": name, "file_name": name, "width": width, "height": height})
            if size is not None:
                objects += _objects(_label_file(file), name, size, problems)
        categories = [{"id": id, "name": category} for id, category in names.items()]
        super().__init__(Path(root), folder, images, categories, objects, problems, **options)


def class_file(root: Path) -> Path:
    """Returns the file of a YOLO folder that lists the classes; `root` itself if it is a file."""
    if root.is_file():
        return root
    found = [root / name for name in CLASS_FILES if (root / name).is_file()]
    if not found:
        raise AnnotationError(f"{root}: not a YOLO folder: none of {', '.join(CLASS_FILES)}")
    return found[0]


def _read_class_file(path: Path) -> tuple[dict[int, str], dict[str, Any]]:
    """Returns the class names by number, and the entries of the file, such as splits."""
    import yaml

    from ..safe_yaml import TextLoader, parse_yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        content = parse_yaml(text, TextLoader) if is_yaml(path) else {"names": lines}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise AnnotationError(f"{path}: cannot read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise AnnotationError(f"{path}: expected keys and values, got {type(content).__name__}")
    if "kpt_shape" in content:
        raise AnnotationError(f"{path}: kpt_shape: keypoints in this format are not supported")
    names = content.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    elif isinstance(names, dict):
        names = {parse_integer(id): name for id, name in names.items()}
    if not isinstance(names, dict) or not names or not all(type(id) is int for id in names):
        expected = "expected a list, or names by number"
        raise AnnotationError(f"{path}: names: {expected}, got {shown(names)}")
    for name in names.values():
        if not is_name(name):
            raise AnnotationError(f"{path}: names: {EXPECTED_NAME}, got {shown(name)}")
    count = content.get("nc", len(names))
    if _numbers(str(count)) != [len(names)]:
        expected = f"expected {len(names)}, the number of names"
        raise AnnotationError(f"{path}: nc: {expected}, got {shown(parse_integer(count))}")
    settings = {key: value for key, value in content.items() if value not in YAML_NULLS}
    return {id: str(name) for id, name in names.items()}, settings


def _images(
    path: Path, settings: dict[str, Any], split: str | None, problems: Problems
) -> list[Path]:
    """Lists the image files of a split, in the order of its list or of their names."""
    if split is not None and split not in SPLITS:
        raise AnnotationError(f"{path}: split: expected {', '.join(SPLITS)}, got {split!r}")
    if is_yaml(path):
        splits = {
            name: settings[key]
            for name, keys in SPLITS.items()
            for key in keys
            if settings.get(key)
        }
    else:
        # Lists of images, as written by CVAT.
        splits = {name: f"{name}.txt" for name in SPLITS if (path.parent / f"{name}.txt").is_file()}
    splits = splits or {"train": "images"}
    chosen = split or ("train" if len(splits) != 1 else next(iter(splits)))
    if chosen not in splits:
        raise AnnotationError(f"{path}: no split {chosen!r}; there are {', '.join(splits)}")
    entries = splits[chosen]
    root = path.parent / str(settings.get("path") or "")
    found: list[Path] = []
    for entry in entries if isinstance(entries, list) else [entries]:
        found += _list_images(_resolve_split(path, root, str(entry), chosen), problems)
    if not found:
        raise AnnotationError(f"{path}: {chosen}: no images in {shown(entries)}")
    return found


def _resolve_split(path: Path, root: Path, entry: str, split: str) -> Path:
    """Returns the path of a split's folder or list."""
    candidates = [root / entry, path.parent / entry, path.parent / entry.removeprefix("../")]
    for candidate in (*candidates, *map(as_on_disk, candidates)):
        if os.path.exists(candidate):  # False for invalid names as well
            return candidate
    raise AnnotationError(f"{path}: {split}: no such folder or list: {candidates[0]}")


def _list_images(path: Path, problems: Problems) -> list[Path]:
    if path.is_dir():
        images = [file for file in _walk_files(path) if _may_be_image(file.name)]
        for labels in _orphan_labels(path, images):
            problems.add(str(labels), "label file without an image")
        return images
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise AnnotationError(f"{path}: cannot read ({error})") from error
    found = []
    for number, name in enumerate(map(str.strip, lines), start=1):
        file = _listed_file(path.parent, name)
        # Report a missing file by name only if it may be an image: a file that is not a list may
        # contain secrets.
        if file is None and _may_be_image(name):
            file = path.parent / name
        if file is not None:
            found.append(file)
        elif name:
            problems.add(f"{path}, line {number}", "not the path of an image")
    return found


def _walk_files(root: Path) -> list[Path]:
    """Lists all files in a folder and its subfolders, by name."""
    found, entries = [], 0
    for folder, folders, files in os.walk(root):
        entries += len(folders) + len(files)
        if entries > MAX_ENTRIES:
            raise AnnotationError(f"{root}: more than {MAX_ENTRIES:,} files and folders in it")
        found += [Path(folder, name) for name in files]
    return sorted(found)


def _orphan_labels(image_folder: Path, images: list[Path]) -> Iterator[Path]:
    """Yields the label files, for a split's folder of images, that have no image."""
    known = {path for image in images for path in _label_files(image)}
    for folder in dict.fromkeys(path.parent for path in _label_files(image_folder / "any")):
        for file in _walk_files(folder):
            if file.suffix == ".txt" and file not in known and _has_labels(file):
                yield file


def _has_labels(path: Path) -> bool:
    """Returns whether a text file contains labels; class lists and notes may lie next to them."""
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError):
        return False
    return any(len(_numbers(line) or ()) >= 5 for line in lines)


def _listed_file(folder: Path, name: str) -> Path | None:
    # CVAT writes paths as if the folder were called `data`.
    found = (find_file(folder, n) for n in (name, name.removeprefix("data/")))
    file = next(filter(None, found), None)
    return None if file is None else folder / file


def _may_be_image(name: str) -> bool:
    return len(name) <= MAX_PATH_LENGTH and Path(name).suffix.lower() in IMAGE_SUFFIXES


def _label_file(image: Path) -> Path:
    swapped, sibling = _label_files(image)
    # The folder `images` may be above the dataset, with the labels next to the images.
    return swapped if swapped.is_file() else sibling


def _label_files(image: Path) -> tuple[Path, Path]:
    """Returns the possible label files: in `labels` instead of `images`, or next to the image."""
    parts = list(image.parts)
    for position in range(len(parts) - 2, -1, -1):
        if parts[position] == "images":
            parts[position] = "labels"
            break
    return as_on_disk(Path(*parts).with_suffix(".txt")), as_on_disk(image.with_suffix(".txt"))


def _objects(
    path: Path, image_id: str, size: tuple[int, int], problems: Problems
) -> Iterator[dict[str, Any]]:
    """Yields the objects of a label file as COCO records, in pixels."""
    if not path.is_file():
        return
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        problems.add(str(path), "unreadable label file", str(error))
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        values = _numbers(line)
        if values is None or not (len(values) == 5 or (len(values) > 6 and len(values) % 2)):
            expected = "expected a class, and 4 numbers or three or more pairs"
            problems.add(where, "broken label", f"{expected}, got {shown(line)}")
            continue
        if max(map(abs, values[1:])) > MAX_COORDINATE:
            problems.add(where, "broken label", f"not in fractions of the image: {shown(line)}")
            continue
        label: Any = int(values[0]) if values[0].is_integer() else values[0]
        found = {"image_id": image_id, "category_id": label, "where": where}
        x, y = [v * size[0] for v in values[1::2]], [v * size[1] for v in values[2::2]]
        if len(values) == 5:
            (cx, w), (cy, h) = x, y
            yield found | {"bbox": [cx - w / 2, cy - h / 2, w, h]}
        else:
            polygon = [value for point in zip(x, y, strict=True) for value in point]
            yield found | {"segmentation": [polygon]}


def _numbers(line: str) -> list[float] | None:
    try:
        values = [float(part) for part in line.split()]
    except ValueError:
        return None
    return values if all(map(math.isfinite, values)) else None
