# SPDX-License-Identifier: MIT
"""What can be wrong with a data set, found when it is opened."""

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
NAMED_PROBLEMS = 5
OUTSIDE = "box outside the image"
EXPECTED_NAME = "expected a name, of text that is not blank or a number"
# Tools that round corners and sizes apart overstep by half a pixel: not worth a word.
SLACK = 0.5
READERS = 8
FLAGS = {"0": False, "1": True, "false": False, "true": True}
JPEG_END = b"\xff\xd9"
JPEG_TAIL = 1024


class AnnotationError(ValueError):
    """An annotation file that is missing, of no known format, or holds broken annotations."""


class BrokenDataError(AnnotationError):
    """Parts of a data set are broken, and could be left out.

    Args:
        place: the data set.
        count: how many parts.
        first: what is wrong with the first few of them.
        remedy: how to leave them out.
    """

    def __init__(self, place: str, count: int, first: str, remedy: str = "on_error='skip'") -> None:
        super().__init__(place, count, first, remedy)

    def __str__(self) -> str:
        place, count, first, remedy = self.args
        return f"{place}: {count} broken ({remedy} leaves them out): {first}"

    def advising(self, remedy: str) -> BrokenDataError:
        """The same error with another remedy: that of the command line, for example."""
        place, count, first, _ = self.args
        return BrokenDataError(place, count, first, remedy)


class BrokenPart(Exception):
    """A part of a data set that cannot be used: kind, detail."""


class Problems:
    """The broken parts of one data set, to be named all at once.

    Args:
        path: the data set's file or folder, named first in every message.

    Attributes:
        mended: counts of what was put right, by kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mended: Counter[str] = Counter()
        self._found: list[tuple[str, str]] = []

    @property
    def lines(self) -> tuple[str, ...]:
        """What was found, a line each."""
        return tuple(text for _, text in self._found)

    def add(self, where: str, kind: str, detail: str = "") -> None:
        """Notes that the thing called `where` is broken in the way `kind`."""
        self._found.append((kind, f"{where}: {kind}{f': {detail}' if detail else ''}"))

    def settle(self, on_error: OnError) -> Counter[str]:
        """Refuses the data set, or counts what is left out of it, by kind.

        Boxes outside their images are left out even of a data set that may have nothing broken: an
        image cut out of a larger one comes with them.

        Raises:
            BrokenDataError: with "raise", if anything else is broken; the first few are named.
        """
        broken = [text for kind, text in self._found if kind != OUTSIDE]
        if broken and on_error == "raise":
            rest = len(broken) - NAMED_PROBLEMS
            more = f"; and {rest} more" if rest > 0 else ""
            first = "; ".join(broken[:NAMED_PROBLEMS])
            raise BrokenDataError(str(self.path), len(broken), first + more)
        return Counter(kind for kind, _ in self._found)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


def is_name(value: object) -> bool:
    """Whether a value from a file may name a category; a number is its own name."""
    return bool(value.strip()) if isinstance(value, str) else is_number(value)


def check_names(path: Path, categories: Iterable[dict[str, Any]], merged: Iterable[str]) -> None:
    """Raises AnnotationError if a category has no name, or that of another.

    Args:
        path: the data set's file or folder.
        categories: COCO's: id, name.
        merged: names that several may have, in any case.
    """
    id_of: dict[str, Any] = {}
    allowed = {name.casefold() for name in merged}
    for category in categories:
        id, name = category["id"], str(category["name"])
        if not is_name(category["name"]):
            got = f"got {shown(name)}"
            raise AnnotationError(f"{path}: category {shown(id)}: {EXPECTED_NAME}, {got}")
        # Objects of either would be rated as the other's.
        if name in id_of and name.casefold() not in allowed:
            raise AnnotationError(
                f"{path}: expected a name of its own for each category, got {shown(name)} for "
                f"{shown(id_of[name])} and {shown(id)} (a class map that has it makes them one)"
            )
        id_of.setdefault(name, id)


def is_number(value: Any) -> bool:
    """Whether a value from a file is a finite number; JSON's true and false are none."""
    if type(value) not in (int, float) and (not isinstance(value, Real) or isinstance(value, bool)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def as_whole(value: Any) -> Any:
    """Returns a whole float, such as an id that pandas wrote as 1.0, as an integer.

    Any other value is returned as it is.
    """
    if isinstance(value, int | str) or not is_number(value) or value != int(value):
        return value
    return int(value)


def given_size(record: dict[str, Any], prefix: str = "") -> tuple[Any, Any] | None:
    """Returns the annotated width and height; None if either is absent, empty or 0."""
    sides = as_whole(record.get(f"{prefix}width")), as_whole(record.get(f"{prefix}height"))
    return None if any(side in (None, "", 0) for side in sides) else sides


def as_flag(value: Any) -> bool | None:
    """A yes or no from a file: 0, 1, true, false or one of them as text; None: something else."""
    if isinstance(value, str):
        return FLAGS.get(value.strip().lower())
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def clip_box(box: Any, width: float, height: float) -> tuple[list[float], bool]:
    """A box (x, y, width, height) cut off at the borders of its image.

    Returns:
        The box, and whether what was cut off is more than rounding.

    Raises:
        BrokenPart: it is not four finite numbers, has a negative side or no area, or lies outside
            the image.
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
    return clipped, min(x, y, width - right, height - bottom) < -SLACK


def keypoints_problem(points: Any, count: int) -> tuple[str, str] | None:
    """What is wrong with COCO keypoints (x, y, visibility, x, ...), as (kind, detail)."""
    if not isinstance(points, list) or not all(map(is_number, points)):
        return "keypoints are not finite numbers", ""
    if len(points) != 3 * count:
        return "keypoints of wrong length", f"expected {3 * count} numbers, got {len(points)}"
    if any(visibility not in (0, 1, 2) for visibility in points[2::3]):
        return "keypoint visibility is not 0, 1 or 2", ""
    return None


class FileReport(NamedTuple):
    """What was found of an image file: its size if that was read, and what is wrong with it."""

    size: tuple[int, int] | None = None
    problem: Problem | None = None


def image_file_report(path: Path, size: tuple[int, int] | None, check: FileCheck) -> FileReport:
    """The size of an image file, and what is wrong with it.

    Args:
        path: the file.
        size: (width, height) it should have once turned upright; None, where that is not known,
            reads it from the file.
        check: "exists" looks no further than the folder, if the size is known; "header" reads the
            size, and whether the file is complete: a JPEG by its end mark, others by decoding;
            "decode" decodes all.
    """
    # Pillow fails on some names, as does the file system on one that is too long.
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
        return FileReport(found, ("image of another size", detail))
    return FileReport(found)


def known_size(image: dict[str, Any], folder: Path) -> tuple[Any, Any] | None:
    """Returns the size of an image record; one without a size gets that of its file.

    Args:
        image: file_name, width, height.
        folder: of the file.

    Returns:
        (width, height), or None if the file cannot be read.
    """
    size = given_size(image)
    if size is None:
        size = image_file_report(folder / image["file_name"], None, "exists").size
        image["width"], image["height"] = size or (None, None)
    return size


def image_file_reports(
    files: Iterable[tuple[Path, tuple[int, int] | None]], check: FileCheck
) -> list[FileReport]:
    """`image_file_report` of many files, several at a time: most of it is waiting for the disk."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: image_file_report(file[0], file[1], check), files))


def _ends_as_jpeg(path: Path, image: Image.Image) -> bool:
    """Whether the file is a JPEG with its end mark; of other files, only decoding tells."""
    if image.format != "JPEG":
        return False
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - JPEG_TAIL))
        return JPEG_END in file.read()
