# SPDX-License-Identifier: MIT
"""Detection data sets in COCO format."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from .image import load_image

Target = dict[str, Any]
Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]

PACKAGE = Path(__file__).resolve().parent.parent
# Decoding a large photograph costs more than cropping it, and iteration-based training comes back
# to the same photograph many times; 16 of them are a few hundred MB at most.
CACHED_IMAGES = 16
NAMED_PROBLEMS = 5


class AnnotationError(ValueError):
    """An annotation file that is missing, not COCO, or holds broken annotations."""


class CocoDetection(Dataset):
    """Images and boxes of one COCO annotation file.

    Category ids are mapped to contiguous labels 1..C in ascending order of id; 0 is background.
    An item is `(image, target)`: image uint8 [3, H, W]; target a dict of `boxes` float32 [n, 4]
    xyxy in pixels, `labels` int64 [n] and `image_id` int. Crowd annotations are left out of the
    targets and kept for evaluation. With a transform, an item is what the transform makes of both.

    Args:
        annotation_file: the JSON file.
        image_dir: folder of the images; the annotation file's own folder by default.
        on_error: "raise" refuses a file with broken annotations and names the first few; "skip"
            leaves them out (an image whose file is missing goes with its annotations) and counts
            them in `skipped`.
        transform: called with (image, target).

    Raises:
        AnnotationError: the file is missing or not COCO, or, with "raise", an annotation is broken:
            zero area, box not inside its image, unknown category or image, missing image file.
    """

    def __init__(
        self,
        annotation_file: str | Path,
        image_dir: str | Path | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        transform: Transform | None = None,
    ) -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected 'raise' or 'skip', got {on_error!r}")
        self.path = Path(annotation_file)
        self.image_dir = Path(image_dir) if image_dir is not None else self.path.parent
        self.transform = transform
        data = _read(self.path)

        categories = sorted(data["categories"], key=lambda category: category["id"])
        self.names: tuple[str, ...] = tuple(str(category["name"]) for category in categories)
        self.category_ids: tuple[int, ...] = tuple(category["id"] for category in categories)
        self.label_of = {id: label for label, id in enumerate(self.category_ids, start=1)}
        self._categories = categories

        problems: list[tuple[str, str]] = []
        self.images = self._checked_images(data["images"], problems)
        self._annotations = self._checked_annotations(data, problems)
        self.skipped = Counter(kind for kind, _ in problems)
        if problems and on_error == "raise":
            raise AnnotationError(_describe(self.path, problems))
        self._read_image = lru_cache(CACHED_IMAGES)(load_image)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Target]:
        record = self.images[index]
        image = self._read_image(self.image_path(index))
        if image.shape[1:] != (record["height"], record["width"]):
            raise AnnotationError(
                f"{self.image_path(index)}: the file is {image.shape[2]} x {image.shape[1]} pixels,"
                f" {self.path} says {record['width']} x {record['height']}"
            )
        target = self.target(index)
        return (image, target) if self.transform is None else self.transform(image, target)

    def __getstate__(self) -> dict[str, Any]:
        # Worker processes started by spawn get the data set pickled; a cache does not pickle.
        return {name: value for name, value in self.__dict__.items() if name != "_read_image"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._read_image = lru_cache(CACHED_IMAGES)(load_image)

    def image_path(self, index: int) -> Path:
        """Path of an image's file."""
        return self.image_dir / self.images[index]["file_name"]

    def target(self, index: int) -> Target:
        """The annotations of an image: boxes [n, 4] xyxy, labels [n], image_id."""
        image_id = self.images[index]["id"]
        kept = [a for a in self._annotations[image_id] if not a["iscrowd"]]
        boxes = torch.tensor([a["bbox"] for a in kept], dtype=torch.float32).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = torch.tensor([self.label_of[a["category_id"]] for a in kept], dtype=torch.int64)
        return {"boxes": boxes, "labels": labels, "image_id": image_id}

    def ground_truth(self) -> dict[str, Any]:
        """The data set as a COCO dict without the annotations that were skipped."""
        annotations = [a for image in self.images for a in self._annotations[image["id"]]]
        return {
            "images": self.images,
            "categories": self._categories,
            "annotations": annotations,
        }

    def _checked_images(self, images: list[dict], problems: list) -> list[dict]:
        kept = []
        for image in images:
            if (self.image_dir / image["file_name"]).is_file():
                kept.append(image)
            else:
                problems.append(("missing file", f"image {image['id']}: {image['file_name']}"))
        return kept

    def _checked_annotations(self, data: dict, problems: list) -> dict[Any, list[dict]]:
        known = {image["id"]: image for image in data["images"]}
        present = {image["id"] for image in self.images}
        kept: dict[Any, list[dict]] = defaultdict(list)
        for number, annotation in enumerate(data["annotations"], start=1):
            box, image = annotation.get("bbox"), known.get(annotation.get("image_id"))
            problem = _problem(annotation, box, image, self.label_of)
            if problem is not None:
                name = annotation.get("id", f"number {number}")
                problems.append((problem, f"annotation {name}: {problem}, bbox {box}"))
            elif annotation["image_id"] in present:
                defaults = {"id": number, "iscrowd": 0, "area": box[2] * box[3]}
                kept[annotation["image_id"]].append(defaults | annotation)
        return kept


def load_datasets(
    paths: str | Sequence[str],
    image_dir: str | Path | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> list[CocoDetection]:
    """Loads annotation files that share their categories.

    Args:
        paths: annotation files; a relative path is looked for in the working folder, then among
            the package's assets, then beside the package.
        image_dir: see `CocoDetection`.
        on_error: see `CocoDetection`.

    Raises:
        AnnotationError: no path given, categories differ, or a file is broken.
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    if not paths:
        raise AnnotationError("no annotation file given (DATASETS.TRAIN or DATASETS.TEST is empty)")
    datasets = [CocoDetection(resolve_path(path), image_dir, on_error) for path in paths]
    for other in datasets[1:]:
        if (other.names, other.category_ids) != (datasets[0].names, datasets[0].category_ids):
            raise AnnotationError(
                f"{other.path}: categories {list(other.names)} differ from "
                f"{list(datasets[0].names)} of {datasets[0].path}"
            )
    return datasets


def resolve_path(path: str | Path) -> Path:
    """A data path as given if it exists, else the same under the package's assets or beside it."""
    candidates: Iterable[Path] = (Path(path), PACKAGE / "assets" / path, PACKAGE.parent / path)
    return next((candidate for candidate in candidates if candidate.exists()), Path(path))


def _read(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AnnotationError(f"{path}: cannot read ({error.strerror})") from error
    except ValueError as error:
        raise AnnotationError(f"{path}: not JSON ({error})") from error
    if not isinstance(data, dict):
        raise AnnotationError(f"{path}: expected a COCO object, got {type(data).__name__}")
    required = {
        "images": ("id", "file_name", "width", "height"),
        "categories": ("id", "name"),
        "annotations": (),
    }
    for key, fields in required.items():
        entries = data.get(key)
        if not isinstance(entries, list):
            raise AnnotationError(f"{path}: not COCO format: no list '{key}'")
        for number, entry in enumerate(entries):
            missing = [f for f in fields if f not in entry] if isinstance(entry, dict) else fields
            if missing or not isinstance(entry, dict):
                raise AnnotationError(f"{path}: {key}[{number}] lacks {', '.join(missing)}")
    return data


def _problem(
    annotation: dict, box: Any, image: dict | None, label_of: dict[int, int]
) -> str | None:
    if image is None:
        return f"unknown image {annotation.get('image_id')}"
    if annotation.get("category_id") not in label_of:
        return f"unknown category {annotation.get('category_id')}"
    if not (
        isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)
    ):
        return "box is not four numbers"
    x, y, width, height = box
    if not (width > 0 and height > 0):
        return "zero area"
    # Half a pixel of slack: tools that round corners and sizes apart overstep by that much.
    inside = x >= -0.5 and y >= -0.5
    if not (inside and x + width <= image["width"] + 0.5 and y + height <= image["height"] + 0.5):
        return f"box outside the image ({image['width']} x {image['height']})"
    return None


def _describe(path: Path, problems: list[tuple[str, str]]) -> str:
    first = "; ".join(text for _, text in problems[:NAMED_PROBLEMS])
    more = f"; and {len(problems) - NAMED_PROBLEMS} more" if len(problems) > NAMED_PROBLEMS else ""
    return f"{path}: {len(problems)} broken (on_error='skip' leaves them out): {first}{more}"
