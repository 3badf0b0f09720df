# SPDX-License-Identifier: MIT
"""The common form of all datasets: images with boxes, masks and keypoints."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..messages import shown
from .class_map import ClassMap, renamed
from .image import ImageError, load_image
from .masks import SegmentationError, decode_masks, enclosing_box, to_rle
from .problems import (
    AnnotationError,
    BrokenPart,
    FileCheck,
    OnError,
    Problems,
    annotated_size,
    as_flag,
    as_integer,
    check_choice,
    check_names,
    clip_box,
    image_file_reports,
    is_number,
    keypoints_problem,
)

Target = dict[str, Any]
Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]

# Decoding a large photograph costs more than cropping it, and iteration-based training revisits the
# same photographs many times. 16 of them take a few hundred MB at most.
CACHED_IMAGES = 16


class DetectionDataset(Dataset):
    """Images and their objects, from COCO-style records; base class of the format readers.

    Category ids are mapped to contiguous labels 1..C in ascending order of id; 0 is background. An
    item is `(image, target)`: image uint8 [3, H, W]; target a dict of `boxes` float32 [n, 4] xyxy
    in pixels, `labels` int64 [n], `image_id` and, if requested, `masks` uint8 [n, H, W] and
    `keypoints` float32 [n, k, 3] (x, y, visibility). Crowd annotations are excluded from the
    targets and kept for evaluation. With a transform, an item is the transform's result.

    Everything is checked when the dataset is opened, so that an epoch does not fail halfway: every
    annotation, the existence of every image file and, depending on `check`, its contents. If a file
    still fails later, the next image replaces it, with a warning, if `on_error` is "skip".
    Otherwise, AnnotationError is raised.

    Args:
        path: the dataset's file or folder, for messages.
        image_dir: folder that the images' file names are relative to.
        images: COCO records: id, file_name, width, height. The size is read from the file if width
            or height is absent, empty or 0.
        categories: COCO records: id, name; keypoints, a list of names, if the objects have any.
        annotations: COCO records: image_id, category_id, bbox; and segmentation, keypoints,
            iscrowd. A box is clipped to its image. If it is missing, the box around the
            segmentation is used. iscrowd is 0, 1, true or false, or one of them as text; the
            default is 0.
        problems: broken parts found so far, while reading the format.
        on_error: "raise" rejects a dataset with broken parts and names the first few; "skip" drops
            them (a broken image with its annotations) and counts them in `skipped`.
        check: level of checks on image files: "exists" checks that they exist; "header" also that
            they are complete and of the annotated size, in about 0.3 ms each; "decode" decodes
            every pixel, which takes about as long as loading an epoch.
        masks: read segmentations (about 0.1 ms each); an object without one is then broken. None
            reads them if there are any.
        keypoints: read keypoints; an object without them is then broken. None reads them if a
            category names some.
        transform: called with (image, target).
        merged: names that several categories may have, in any case, because `rename` merges these.

    Attributes:
        names: category names of labels 1..C, in order.
        category_ids: their ids.
        images: records of the images, in the order of the items.
        skipped: number of dropped parts, by kind; boxes entirely outside their image are always
            dropped.
        broken: one line for each dropped part.
        mended: number of corrections, by kind: boxes clipped by more than half a pixel.
        keypoint_names: keypoint names of the first category that has any.
        most_failing: fraction of the images that may fail after opening, with "skip"; by default
            all.

    Raises:
        AnnotationError: two categories have the same name, or one has none; or, with "raise",
            something is broken: a box of zero area, of negative width or height or not four finite
            numbers, an unknown category or image, a segmentation that is empty, malformed or out of
            range, an iscrowd that is neither yes nor no, keypoints of a wrong length, an image file
            that is missing, truncated, unreadable or of another size.

    Example:
        >>> dataset = detops.data.open_dataset("tree_crowns/val.json")
        >>> isinstance(dataset, DetectionDataset), dataset.names
        (True, ('tree',))
    """

    names: tuple[str, ...]
    category_ids: tuple[Any, ...]
    label_of: dict[Any, int]

    def __init__(
        self,
        path: Path,
        image_dir: Path,
        images: list[dict],
        categories: list[dict],
        annotations: list[dict],
        problems: Problems,
        on_error: OnError = "raise",
        check: FileCheck = "header",
        masks: bool | None = False,
        keypoints: bool | None = False,
        transform: Transform | None = None,
        merged: Iterable[str] = (),
    ) -> None:
        check_choice("on_error", on_error, ("raise", "skip"))
        check_choice("check", check, ("exists", "header", "decode"))
        self.path, self.image_dir, self.on_error = path, image_dir, on_error
        self.transform = transform
        check_names(path, categories, merged)
        self._set_categories(sorted(categories, key=lambda category: category["id"]))
        named = [c["keypoints"] for c in self._categories if isinstance(c.get("keypoints"), list)]
        self.keypoint_names: tuple[str, ...] = tuple(map(str, next(filter(None, named), ())))
        if masks is None:
            masks = any("segmentation" in annotation for annotation in annotations)
        if keypoints is None:
            keypoints = bool(self.keypoint_names)
        if keypoints and not self.keypoint_names:
            raise AnnotationError(f"{path}: keypoints are required, but no category names any")
        self.masks, self.keypoints = masks, keypoints

        self.images = self._valid_images(images, problems, check)
        known = {image["id"]: image for image in images}
        self._annotations = self._valid_annotations(annotations, known, problems)
        self.skipped: Counter[str] = problems.raise_or_count(on_error)
        self.broken = problems.lines
        self.mended: Counter[str] = problems.mended
        self.most_failing = 1.0
        self._failed: set[int] = set()
        self._cache()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} of {len(self)} images")
        index, image = self._readable(index % len(self))
        target = self.target(index)
        return (image, target) if self.transform is None else self.transform(image, target)

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes started by spawn receive a pickled dataset, and the cache cannot be
        # pickled.
        return {name: value for name, value in self.__dict__.items() if name != "_cached"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._cache()

    def rename(self, class_map: ClassMap) -> None:
        """Renames categories and merges those that then have the same name.

        Args:
            class_map: new names by old ones, ignoring case.

        Raises:
            ValueError: the dataset has neither a category of an old name nor one of its new name.
        """
        merged: dict[str, dict] = {}
        merged_id: dict[Any, Any] = {}
        names = renamed(self.names, class_map, self.path)
        for category, name in zip(self._categories, names, strict=True):
            first = merged.setdefault(name.casefold(), category | {"name": name})
            merged_id[category["id"]] = first["id"]
        before = {id: self.category_ids[label - 1] for id, label in self.label_of.items()}
        self._set_categories(list(merged.values()))
        labels = self.label_of
        self.label_of = {id: labels[merged_id[first]] for id, first in before.items()}
        for objects in self._annotations.values():
            for annotation in objects:
                annotation["category_id"] = merged_id[annotation["category_id"]]

    def image_path(self, index: int) -> Path:
        """Returns the path of an image's file."""
        return self.image_dir / self.images[index]["file_name"]

    def image(self, index: int) -> Tensor:
        """Returns an image's pixels, uint8 [3, H, W] RGB.

        Raises:
            ImageError: the file cannot be read.
            AnnotationError: the file has another size than annotated.
        """
        record, path = self.images[index], self.image_path(index)
        image = self._cached(path)
        if image.shape[1:] != (record["height"], record["width"]):
            raise AnnotationError(
                f"{path}: the file is {image.shape[2]} x {image.shape[1]} pixels, {self.path} says "
                f"{record['width']} x {record['height']}"
            )
        return image

    def target(self, index: int) -> Target:
        """Returns the target of an image, without crowds: see the class."""
        record = self.images[index]
        objects = [a for a in self._annotations[record["id"]] if not a["iscrowd"]]
        boxes = torch.tensor([a["bbox"] for a in objects], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([self.label_of[a["category_id"]] for a in objects], dtype=torch.int64)
        target = {"boxes": boxes, "labels": labels, "image_id": record["id"]}
        if self.masks:
            rles = [a["segmentation"] for a in objects]
            target["masks"] = decode_masks(rles, record["height"], record["width"])
        if self.keypoints:
            points = torch.tensor([a["keypoints"] for a in objects], dtype=torch.float32)
            target["keypoints"] = points.reshape(-1, len(self.keypoint_names), 3)
        return target

    def ground_truth(self) -> dict[str, Any]:
        """Returns the dataset as a COCO dict, without dropped parts but with crowds.

        It contains segmentations (as run lengths) and keypoints if the dataset was opened with
        them.
        """
        annotations = [a for image in self.images for a in self._annotations[image["id"]]]
        return {
            "images": self.images,
            "categories": self._categories,
            "annotations": annotations,
        }

    def describe_problems(self) -> str:
        """Returns a line about corrected and dropped parts; empty if there are none."""
        counts = {"corrected": self.mended, "skipped": self.skipped}
        return "; ".join(
            f"{title} " + ", ".join(f"{count} x {kind}" for kind, count in found.items())
            for title, found in counts.items()
            if found
        )

    def _set_categories(self, categories: list[dict]) -> None:
        self._categories = categories
        self.names = tuple(str(c["name"]) for c in categories)
        self.category_ids = tuple(c["id"] for c in categories)
        self.label_of = {id: label for label, id in enumerate(self.category_ids, start=1)}

    def _cache(self) -> None:
        self._cached: Callable[..., Any] = lru_cache(CACHED_IMAGES)(load_image)

    def _readable(self, index: int) -> tuple[int, Tensor]:
        """Returns index and pixels of the first readable image from `index` on, wrapping around."""
        for candidate in [*range(index, len(self)), *range(index)]:
            try:
                return candidate, self.image(candidate)
            except (ImageError, AnnotationError) as error:
                if self.on_error == "raise":
                    raise AnnotationError(str(error)) from error
                warnings.warn(f"{error}: the next image replaces it", stacklevel=3)
                self._failed.add(candidate)
                count, size = len(self._failed), len(self)
                if count > max(1, self.most_failing * size) and count < size:
                    raise AnnotationError(
                        f"{self.path}: {count} of {size} images can no longer be read, which is "
                        f"more than {self.most_failing:.0%}; the last: {error}"
                    ) from error
        raise AnnotationError(f"{self.path}: none of its {len(self)} images can be read")

    def _valid_images(self, images: list[dict], problems: Problems, check: FileCheck) -> list[dict]:
        named, seen = [], set()
        for image in images:
            problem = _image_problem(image)
            if image["id"] in seen:
                problem = "duplicate image id", ""
            if problem is None:
                named.append(image)
            else:
                problems.add(f"image {image['id']}", *problem)
            seen.add(image["id"])
        files = ((self.image_dir / image["file_name"], annotated_size(image)) for image in named)
        valid = []
        for image, report in zip(named, image_file_reports(files, check), strict=True):
            if report.problem is not None:
                problems.add(f"image {image['id']}", *report.problem)
                continue
            if report.size is not None:
                image["width"], image["height"] = report.size
            valid.append(image)
        return valid

    def _valid_annotations(
        self, annotations: list[dict], known: dict[Any, dict], problems: Problems
    ) -> dict[Any, list[dict]]:
        present = {image["id"] for image in self.images}
        valid: dict[Any, list[dict]] = defaultdict(list)
        for number, annotation in enumerate(annotations, start=1):
            where = annotation.get(
                "where", f"annotation {annotation.get('id', f'number {number}')}"
            )
            image = _lookup(known, annotation.get("image_id"))
            if image is None:
                problems.add(where, "unknown image", shown(annotation.get("image_id")))
            elif image["id"] in present:
                try:
                    valid[image["id"]].append(self._validated(annotation, image, number, problems))
                except BrokenPart as broken:
                    problems.add(where, *broken.args)
        return valid

    def _validated(self, annotation: dict, image: dict, number: int, problems: Problems) -> dict:
        """Returns the annotation with all fields of the requested parts; raises BrokenPart."""
        if _lookup(self.label_of, annotation.get("category_id")) is None:
            raise BrokenPart("unknown category", shown(annotation.get("category_id")))
        crowd = is_crowd(annotation)
        size = image["height"], image["width"]
        fields = {key: as_integer(annotation[key]) for key in ("image_id", "category_id")}
        fields["id"] = as_integer(annotation.get("id", number))
        try:
            box, is_clipped = clip_box(
                annotated_box(annotation, *size), image["width"], image["height"]
            )
            fields |= {"bbox": box, "iscrowd": int(crowd)}
            if self.masks:
                fields["segmentation"] = to_rle(annotation.get("segmentation"), *size)
        except SegmentationError as error:
            raise BrokenPart("broken segmentation", str(error)) from error
        problem = None
        if self.keypoints:
            problem = keypoints_problem(annotation.get("keypoints"), len(self.keypoint_names))
            # A crowd is never a target and often has no keypoints, so it does not need them.
            if problem is not None and not crowd:
                raise BrokenPart(*problem)
        if not is_number(annotation.get("area")):
            fields["area"] = box[2] * box[3]
        if is_clipped:
            problems.mended["box clipped to its image"] += 1
        # Drop unchecked fields, because pycocotools trusts its input.
        is_valid = {"segmentation": self.masks, "keypoints": self.keypoints and problem is None}
        kept = {key: value for key, value in annotation.items() if is_valid.get(key, True)}
        return kept | fields


def is_crowd(annotation: dict[str, Any]) -> bool:
    """Returns whether an annotation is a crowd; raises BrokenPart if iscrowd is not a flag."""
    flag = annotation.get("iscrowd")
    crowd = as_flag(0 if flag is None else flag)
    if crowd is None:
        raise BrokenPart("iscrowd is not 0 or 1", shown(flag))
    return crowd


def annotated_box(annotation: dict[str, Any], height: float, width: float) -> Any:
    """Returns the unchecked box of an annotation, or the one around its segmentation.

    Raises:
        SegmentationError: the segmentation is needed and broken.
    """
    box = annotation.get("bbox")
    if box in (None, []) and annotation.get("segmentation"):
        return enclosing_box(annotation["segmentation"], height, width)
    return box


def number_categories(names: Iterable[str], objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns COCO categories of these names, numbered from 1.

    Args:
        names: names in order; duplicates are skipped.
        objects: their `category_id` is a name. It is replaced by the category's number, or stays if
            it is none of the names.
    """
    ids = {name: id for id, name in enumerate(dict.fromkeys(names), start=1)}
    for found in objects:
        found["category_id"] = ids.get(found["category_id"], found["category_id"])
    return [{"id": id, "name": name} for name, id in ids.items()]


def _lookup(table: dict, key: Any) -> Any:
    """Returns the entry of a key from a file; keys that are neither integers nor text have none."""
    key = as_integer(key)
    return table.get(key) if isinstance(key, int | str) else None


def _image_problem(image: dict) -> tuple[str, str] | None:
    sides = annotated_size(image)
    if sides is not None and not all(type(side) is int and side > 0 for side in sides):
        return "size is not two positive whole numbers", f"{shown(sides[0])} x {shown(sides[1])}"
    if not isinstance(image["file_name"], str) or not image["file_name"]:
        return "file name is not text", shown(image["file_name"])
    return None
