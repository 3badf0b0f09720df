# SPDX-License-Identifier: MIT
"""Datasets in Pascal VOC format."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from ..messages import MAX_VALUE_LENGTH
from .detection import DetectionDataset
from .files import as_on_disk, check_regular, composed, read_lines, relative_name
from .image import IMAGE_SUFFIXES, ImageError, open_image
from .masks import encode_mask
from .problems import AnnotationError, Problems, as_flag, check_choice, known_size

VOC_NAMES = tuple(
    "aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike "
    "person pottedplant sheep sofa train tvmonitor".split()
)
CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocDetection(DetectionDataset):
    """Images and objects of a folder in the format of the Pascal VOC challenges.

    The folder contains `Annotations/<name>.xml` and `JPEGImages/<name>.jpg`, listed in
    `ImageSets/Main/<split>.txt`. Images may have any image suffix in any case, or the name given as
    `filename` in the annotations. The folders may also be called `annotations` and `images`. Masks
    come from `SegmentationObject/<name>.png`, where pixels of the k-th object have the value k; the
    images with masks are listed in `ImageSets/Segmentation/<split>.txt`. Without lists, all images
    with annotations are used.

    VOC counts pixels from 1 and includes the last: its box (xmin, ymin, xmax, ymax) becomes
    (xmin - 1, ymin - 1, xmax, ymax). It is clipped to the image, because boxes of tools that count
    from 0 would exceed it. `image_id` is the image's name. Evaluation is COCO's. Its AP50 is VOC's
    AP, except for a finer interpolation.

    Args:
        root: the folder, `VOC2007` for example.
        split: name of a list in ImageSets; by default "trainval", or the only one.
        difficult: treatment of objects marked as difficult. "ignore" excludes them from the
            targets, and the evaluation ignores detections of them (as with COCO crowds); "use"
            treats them as any others. Both keep `difficult` in the annotations.
        names: the categories, as a list or as text with commas; by default the challenges' twenty
            if they cover all objects, else those that occur, in alphabetical order. Names that
            differ only in case are the same.
        options: see `DetectionDataset`: on_error, check, masks, transform.

    Raises:
        AnnotationError: the folder, the split or the annotations are missing, or, with
            on_error="raise", something in it is broken.

    Example:
        >>> dataset = VocDetection("VOCdevkit/VOC2007", split="val")  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path,
        split: str | None = None,
        difficult: Literal["ignore", "use"] = "ignore",
        names: Sequence[str] | str | None = None,
        **options: Any,
    ) -> None:
        check_choice("difficult", difficult, ("ignore", "use"))
        root = Path(root)
        masks = options.get("masks", False)
        problems = Problems(root)
        folder = annotation_folder(root)
        if folder is None:
            raise AnnotationError(f"{root}: not a Pascal VOC folder: no folder 'Annotations'")
        image_folder = root / "JPEGImages"
        if not image_folder.is_dir() and (root / "images").is_dir():
            image_folder = root / "images"
        images: list[dict] = []
        objects: list[dict] = []
        lists = root / "ImageSets" / ("Segmentation" if masks else "Main")
        image_files = cache(_image_files)  # lists each folder of images only once
        for name in _split_names(folder, lists, split):
            where = f"{folder.name}/{name}.xml"
            try:
                image, found = _read_xml(as_on_disk(root / where), name)
            except _XmlError as error:
                problems.add(where, "broken annotation file", str(error))
                continue
            subfolder, _, stem = name.rpartition("/")
            directory = as_on_disk(image_folder / subfolder)
            file_name = _file_name(image_files(directory), stem, image["file_name"])
            image["file_name"] = relative_name(directory / file_name, image_folder)
            # An image file that cannot be read is reported separately.
            if masks and known_size(image, image_folder):
                path = as_on_disk(root / "SegmentationObject" / f"{name}.png")
                _add_masks(path, image, found, problems)
            images.append(image)
            objects += found
        # Use the alphabetically first of several spellings.
        present = {o["name"].casefold(): o["name"] for o in sorted(objects, key=_object_name)[::-1]}
        present.pop("", None)
        if names is None:
            names = VOC_NAMES if present.keys() <= set(VOC_NAMES) else sorted(present.values())
        if isinstance(names, str):
            names = names.split(",")
        ids = {category: id for id, category in enumerate(names, start=1)}
        folded = {category.casefold(): id for category, id in ids.items()}
        for o in objects:
            o["category_id"] = folded.get(o["name"].casefold(), o["name"])
            o["iscrowd"] = int(difficult == "ignore" and o["difficult"])
        categories = [{"id": id, "name": category} for category, id in ids.items()]
        contents = (images, categories, objects)
        super().__init__(root, image_folder, *contents, problems, **options)


def annotation_folder(root: Path) -> Path | None:
    """Returns the folder of the annotation files, or None.

    A folder called `annotations` may be of another format, so it must contain XML files.
    """
    usual, other = root / "Annotations", root / "annotations"
    if usual.is_dir():
        return usual
    return other if any(other.glob("*.xml")) else None


def _object_name(found: dict) -> str:
    return found["name"]


class _XmlError(ValueError):
    """An annotation file that is unreadable or lacks a required part."""


def _split_names(folder: Path, lists: Path, split: str | None) -> list[str]:
    """Returns the names of the images of a split, or of all images with annotations."""
    # Lists such as `cat_val.txt` state which images contain a cat, and `train_val.txt` which
    # contain a train. They are not splits.
    stems = sorted(path.stem for path in lists.glob("*.txt"))
    known = [stem for stem in stems if stem.rpartition("_")[0] not in VOC_NAMES]
    if not known and split is None:
        return sorted(path.stem for path in folder.glob("*.xml"))
    if split is None:
        split = known[0] if len(known) == 1 else "trainval"
    try:
        lines = read_lines(lists / f"{split}.txt")
    except (OSError, UnicodeDecodeError) as error:
        available = f"; there are {', '.join(known)}" if known else ""
        raise AnnotationError(
            f"{lists / f'{split}.txt'}: cannot read the split {split!r}{available}"
        ) from error
    return [line.split()[0] for line in lines if line.strip()]


def _read_xml(path: Path, name: str) -> tuple[dict, list[dict]]:
    try:
        check_regular(path)
        tree = ElementTree.parse(path).getroot()
    except OSError as error:
        raise _XmlError(error.strerror) from error
    except (ElementTree.ParseError, ValueError) as error:
        raise _XmlError(f"not XML ({error})") from error
    if tree.tag != "annotation" and tree.find("size") is None:
        raise _XmlError(f"expected <annotation>, got <{tree.tag[:MAX_VALUE_LENGTH]}>")
    # A missing side is read as 0: see `annotated_size`.
    sides = [_number(tree, f"size/{side}", "0") for side in ("width", "height")]
    if not all(side >= 0 and side == int(side) for side in sides):
        raise _XmlError(f"size is {sides[0]:g} x {sides[1]:g}")
    image = {"id": name, "width": int(sides[0]), "height": int(sides[1])}
    image["file_name"] = (tree.findtext("filename") or "").strip()
    objects = []
    for number, element in enumerate(tree.iter("object"), start=1):
        found: dict[str, Any] = {"image_id": name}
        found["where"] = f"{path.parent.name}/{path.name}, object {number}"
        found["name"] = (element.findtext("name") or "").strip()
        flag = (element.findtext("difficult") or "0").strip()
        difficult = as_flag(flag)
        if difficult is None:
            raise _XmlError(f"object {number}: difficult is {flag!r}, not 0 or 1")
        found["difficult"] = int(difficult)
        try:
            x1, y1, x2, y2 = (_number(element, f"bndbox/{corner}") for corner in CORNERS)
            found["bbox"] = [x1 - 1, y1 - 1, x2 - x1 + 1, y2 - y1 + 1]
        except _XmlError as error:
            found["bbox"] = str(error)
        objects.append(found)
    return image, objects


def _number(element: ElementTree.Element, tag: str, default: str = "") -> float:
    text = element.findtext(tag)
    try:
        value = float((text or "").strip() or default)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _XmlError(f"{tag} is {text!r}")
    return value


def _image_files(folder: Path) -> dict[str, list[str]]:
    """Maps composed stems to a folder's image files, common suffixes first."""
    found: dict[str, list[str]] = defaultdict(list)
    order = {suffix: rank for rank, suffix in enumerate(IMAGE_SUFFIXES)}
    try:
        names = sorted(os.listdir(folder))
    except OSError:  # the images are then reported as missing
        return found
    for name in names:
        stem, suffix = os.path.splitext(name)
        if suffix.lower() in order:
            found[composed(stem)].append(name)
    for files in found.values():
        files.sort(key=lambda name: order[os.path.splitext(name)[1].lower()])
    return found


def _file_name(by_stem: dict[str, list[str]], name: str, annotated_name: str) -> str:
    """Returns the name of an image's file, or the expected name if it is missing.

    Args:
        by_stem: see `_image_files`.
        name: name of the image.
        annotated_name: file name in the annotations. If files were renamed, it is an old name that
            another image may have now. It therefore only selects among the files with the image's
            name, or is used if there are none.
    """
    matching = _files_with_stem(by_stem, name)
    candidates = matching or _files_with_stem(by_stem, os.path.splitext(annotated_name)[0])
    same = [file for file in candidates if composed(file) == composed(annotated_name)]
    return annotated_name if annotated_name in same else next(iter(same or matching), f"{name}.jpg")


def _files_with_stem(by_stem: dict[str, list[str]], stem: str) -> list[str]:
    """Returns the files of exactly this stem, or else of its other Unicode forms."""
    files = by_stem.get(composed(stem), [])
    return [file for file in files if os.path.splitext(file)[0] == stem] or files


def _add_masks(path: Path, image: dict, objects: list[dict], problems: Problems) -> None:
    """Adds segmentations to the objects of an image; 255 marks pixels of no object."""
    try:
        with open_image(path) as file:
            values = np.array(file)
    except ImageError as error:
        problems.add(f"SegmentationObject/{path.name}", "unreadable masks", str(error))
        return
    if values.shape != (image["height"], image["width"]):
        problems.add(f"SegmentationObject/{path.name}", "wrong mask size", f"{values.shape}")
        return
    for number, found in enumerate(objects, start=1):
        found["segmentation"] = encode_mask(values == number)
