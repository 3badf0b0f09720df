# SPDX-License-Identifier: MIT
"""Problems of datasets, found when they are opened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image

from ..messages import shown
from .image import ImageError, check_decodes, open_image, upright_size

Problem = tuple[str, str]  # kind, detail
OnError = Literal["raise", "skip"]
FileCheck = Literal["exists", "header", "decode"]
MAX_LISTED_PROBLEMS = 5
OUTSIDE = "box outside the image"
EXPECTED_NAME = "expected a name, of text that is not blank or a number"
# Tools that round corners and sizes separately exceed the image by half a pixel. This is not
# reported.
CLIP_TOLERANCE = 0.5
READER_THREADS = 8
FLAGS = {"0": False, "1": True, "false": False, "true": True}
JPEG_END = b"\xff\xd9"
JPEG_TAIL = 1024


class AnnotationError(ValueError):
    """An annotation file that is missing, of an unknown format, or that has broken annotations."""


class BrokenDataError(AnnotationError):
    """Parts of a dataset are broken and can be skipped.

    Args:
        path: the dataset.
        count: number of broken parts.
        first: problems of the first few of them.
        remedy: how to skip them.
    """

    def __init__(self, path: str, count: int, first: str, remedy: str = "on_error='skip'") -> None:
        super().__init__(path, count, first, remedy)

    def __str__(self) -> str:
        path, count, first, remedy = self.args
        return f"{path}: {count} broken ({remedy} skips them): {first}"

    def with_remedy(self, remedy: str) -> BrokenDataError:
        """Returns the same error with another remedy, such as that of the command line."""
        path, count, first, _ = self.args
        return BrokenDataError(path, count, first, remedy)


class BrokenPart(Exception):
    """A part of a dataset that cannot be used: kind, detail."""


class Problems:
    """The broken parts of one dataset, collected to be reported together.

    Args:
        path: the dataset's file or folder; each message starts with it.

    Attributes:
        mended: number of corrections, by kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mended: Counter[str] = Counter()
        self._found: list[tuple[str, str]] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """One line for each problem."""
        return tuple(text for _, text in self._found)

    def add(self, where: str, kind: str, detail: str = "") -> None:
        """Records a problem of the given kind in the part called `where`."""
        self._found.append((kind, f"{where}: {kind}{f': {detail}' if detail else ''}"))

    def raise_or_count(self, on_error: OnError) -> Counter[str]:
        """Rejects the dataset, or returns the number of dropped parts by kind.

        Boxes outside their images are always dropped, even with "raise", because images cropped
        from a larger one have them.

        Raises:
            BrokenDataError: with "raise", if anything else is broken; the first few problems are
                named.
        """
        broken = [text for kind, text in self._found if kind != OUTSIDE]
        if broken and on_error == "raise":
            rest = len(broken) - MAX_LISTED_PROBLEMS
            more = f"; and {rest} more" if rest > 0 else ""
            first = "; ".join(broken[:MAX_LISTED_PROBLEMS])
            raise BrokenDataError(str(self.path), len(broken), first + more)
        return Counter(kind for kind, _ in self._found)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


def is_name(value: object) -> bool:
    """Returns whether a value from a file is valid as a category name; a number is."""
    return bool(value.strip()) if isinstance(value, str) else is_number(value)


def check_names(path: Path, categories: Iterable[dict[str, Any]], merged: Iterable[str]) -> None:
    """Raises AnnotationError if a category has no name, or the name of another one.

    Args:
        path: the dataset's file or folder.
        categories: COCO records: id, name.
        merged: names that several categories may have, in any case.
    """
    id_by_name: dict[str, Any] = {}
    allowed = {name.casefold() for name in merged}
    for category in categories:
        id, name = category["id"], str(category["name"])
        if not is_name(category["name"]):
            got = f"got {shown(name)}"
            raise AnnotationError(f"{path}: category {shown(id)}: {EXPECTED_NAME}, {got}")
        # Otherwise, objects of one category would be evaluated as the other's.
        if name in id_by_name and name.casefold() not in allowed:
            raise AnnotationError(
                f"{path}: expected a unique name for each category, got {shown(name)} "
                f"for {shown(id_by_name[name])} and {shown(id)} (a class map that "
                "contains it merges them)"
            )
        id_by_name.setdefault(name, id)


def is_number(value: Any) -> bool:
    """Returns whether a value from a file is a finite number; JSON's true and false are not."""
    if type(value) not in (int, float) and (not isinstance(value, Real) or isinstance(value, bool)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def as_integer(value: Any) -> Any:
    """Returns a whole float, such as an id that pandas wrote as 1.0, as an integer.

    Any other value is returned as it is.
    """
    if isinstance(value, int | str) or not is_number(value) or value != int(value):
        return value
    return int(value)


def annotated_size(record: dict[str, Any], prefix: str = "") -> tuple[Any, Any] | None:
    """Returns the annotated width and height; None if either is absent, empty or 0."""
    sides = as_integer(record.get(f"{prefix}width")), as_integer(record.get(f"{prefix}height"))
    return None if any(side in (None, "", 0) for side in sides) else sides


def as_flag(value: Any) -> bool | None:
    """Parses a flag from a file: 0, 1, true, false, or these as text; None for anything else."""
    if isinstance(value, str):
        return FLAGS.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def clip_box(box: Any, width: float, height: float) -> tuple[list[float], bool]:
    """Clips a box (x, y, width, height) to its image.

    Returns:
        The box, and whether the clipped part is more than rounding.

    Raises:
        BrokenPart: the box is not four finite numbers, has a negative side or no area, or lies
            outside the image.
    """
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        raise BrokenPart("box is not four finite numbers", f"bbox {shown(box)}")
    x, y, w, h = box
    if w < 0 or h < 0:
        raise BrokenPart("negative width or height", f"bbox {shown(box)}")
    if w == 0 or h == 0:
        raise BrokenPart("zero area", f"bbox {shown(box)}")
    right, bottom = x + w, y + h
    if x >= 0 and y >= 0 and right <= width and bottom <= height:
        return box, False
    left, top = max(x, 0), max(y, 0)
    clipped = [left, top, min(right, width) - left, min(bottom, height) - top]
    if not (clipped[2] > 0 and clipped[3] > 0):
        raise BrokenPart(OUTSIDE, f"{width} x {height} pixels, bbox {shown(box)}")
    return clipped, min(x, y, width - right, height - bottom) < -CLIP_TOLERANCE


def keypoints_problem(points: Any, count: int) -> tuple[str, str] | None:
    """Returns the problem of COCO keypoints (x, y, visibility, ...) as (kind, detail), or None."""
    if not isinstance(points, list) or not all(map(is_number, points)):
        return "keypoints are not finite numbers", ""
    if len(points) != 3 * count:
        return "keypoints of wrong length", f"expected {3 * count} numbers, got {len(points)}"
    if any(visibility not in (0, 1, 2) for visibility in points[2::3]):
        return "keypoint visibility is not 0, 1 or 2", ""
    return None


class FileReport(NamedTuple):
    """Result of checking an image file: its size if it was read, and its problem if any."""

    size: tuple[int, int] | None = None
    problem: Problem | None = None


def image_file_report(path: Path, size: tuple[int, int] | None, check: FileCheck) -> FileReport:
    """Returns the size of an image file, and its problem if there is one.

    Args:
        path: the file.
        size: expected (width, height) of the upright image; None if unknown, then it is read from
            the file.
        check: "exists" checks only that the file exists, if the size is known; "header" reads the
            size and checks that the file is complete, a JPEG by its end marker, others by decoding;
            "decode" always decodes the file.
    """
    # Pillow fails on some names, and the file system on those that are too long.
    try:
        if not path.is_file():
            kind = "not a regular file" if path.exists() else "missing file"
            return FileReport(problem=(kind, str(path)))
        if check == "exists" and size is not None:
            return FileReport(size)
        with open_image(path) as image:
            found = upright_size(image)
            if check != "exists" and (check == "decode" or not _ends_as_jpeg(path, image)):
                check_decodes(image)
    except (ImageError, OSError, ValueError) as error:
        return FileReport(problem=("unreadable image", str(error)))
    if size is not None and found != size:
        expected = f"expected {size[0]} x {size[1]} pixels"
        detail = f"{expected}, {path} has {found[0]} x {found[1]}"
        return FileReport(found, ("wrong image size", detail))
    return FileReport(found)


def known_size(image: dict[str, Any], folder: Path) -> tuple[Any, Any] | None:
    """Returns the size of an image record; reads it from the file if it is missing.

    Args:
        image: record with file_name, width, height.
        folder: folder of the file.

    Returns:
        (width, height), or None if the file cannot be read.
    """
    size = annotated_size(image)
    if size is None:
        size = image_file_report(folder / image["file_name"], None, "exists").size
        image["width"], image["height"] = size or (None, None)
    return size


def image_file_reports(
    files: Iterable[tuple[Path, tuple[int, int] | None]], check: FileCheck
) -> list[FileReport]:
    """Runs `image_file_report` on many files concurrently: it mostly waits for the disk."""
    with ThreadPoolExecutor(READER_THREADS) as pool:
        return list(pool.map(lambda file: image_file_report(file[0], file[1], check), files))


def _ends_as_jpeg(path: Path, image: Image.Image) -> bool:
    """Returns whether the file is a JPEG with its end marker; other formats must be decoded."""
    if image.format != "JPEG":
        return False
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - JPEG_TAIL))
        return JPEG_END in file.read()
