# SPDX-License-Identifier: MIT
"""What can be wrong with a data set, found when it is opened."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from pathlib import Path
from typing import Any, Literal

from PIL import Image

OnError = Literal["raise", "skip"]
FileCheck = Literal["exists", "header", "decode"]
NAMED_PROBLEMS = 5
# Half a pixel of slack: tools that round corners and sizes apart overstep by that much.
SLACK = 0.5
READERS = 8
EXIF_ORIENTATION = 0x0112
JPEG_END = b"\xff\xd9"
JPEG_TAIL = 1024


class AnnotationError(ValueError):
    """An annotation file that is missing, of no known format, or holds broken annotations."""


class Problems:
    """The broken parts of one data set, to be named all at once.

    Args:
        path: the data set's file or folder, named first in every message.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._found: list[tuple[str, str]] = []

    def add(self, where: str, kind: str, detail: str = "") -> None:
        """Notes that the thing called `where` is broken in the way `kind`."""
        self._found.append((kind, f"{where}: {kind}{f': {detail}' if detail else ''}"))

    def settle(self, on_error: OnError) -> Counter[str]:
        """Refuses the data set, or counts what is left out of it, by kind.

        Raises:
            AnnotationError: with "raise", if anything is broken; the first few are named.
        """
        if self._found and on_error == "raise":
            first = "; ".join(text for _, text in self._found[:NAMED_PROBLEMS])
            rest = len(self._found) - NAMED_PROBLEMS
            more = f"; and {rest} more" if rest > 0 else ""
            raise AnnotationError(
                f"{self.path}: {len(self._found)} broken (on_error='skip' leaves them out): "
                f"{first}{more}"
            )
        return Counter(kind for kind, _ in self._found)


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ValueError unless the value is one of the choices."""
    if value not in choices:
        expected = " or ".join(map(repr, choices))
        raise ValueError(f"{name}: expected {expected}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether a value from a file is a finite number; JSON's true and false are none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def box_problem(box: Any, width: float, height: float) -> tuple[str, str] | None:
    """What is wrong with a box (x, y, width, height) in an image, as (kind, detail)."""
    if not isinstance(box, list) or len(box) != 4 or not all(map(is_number, box)):
        return "box is not four finite numbers", f"bbox {box}"
    x, y, w, h = box
    if not (w > 0 and h > 0):
        return "zero area", f"bbox {box}"
    inside = x >= -SLACK and y >= -SLACK and x + w <= width + SLACK and y + h <= height + SLACK
    if not inside:
        return "box outside the image", f"{width} x {height} pixels, bbox {box}"
    return None


def keypoints_problem(points: Any, count: int) -> tuple[str, str] | None:
    """What is wrong with COCO keypoints (x, y, visibility, x, ...), as (kind, detail)."""
    if not isinstance(points, list) or not all(map(is_number, points)):
        return "keypoints are not finite numbers", ""
    if len(points) != 3 * count:
        return "keypoints of wrong length", f"expected {3 * count} numbers, got {len(points)}"
    if any(visibility not in (0, 1, 2) for visibility in points[2::3]):
        return "keypoint visibility is not 0, 1 or 2", ""
    return None


def image_file_problem(
    path: Path, size: tuple[int, int] | None, check: FileCheck
) -> tuple[str, str] | None:
    """What is wrong with an image file, as (kind, detail).

    Args:
        path: the file.
        size: (width, height) it should have once turned upright, if that is known.
        check: "exists" looks no further than the folder; "header" reads the size, and
            whether the file is complete: a JPEG by its end mark, others by decoding; "decode"
            decodes all.
    """
    try:
        if not path.is_file():
            return "missing file", str(path)
        if check == "exists":
            return None
        with Image.open(path) as image:
            width, height = image.size
            if image.getexif().get(EXIF_ORIENTATION, 1) in (5, 6, 7, 8):
                width, height = height, width
            if check == "decode" or not _ends_as_jpeg(path, image):
                image.load()
    # Pillow's readers raise many types on damaged files, SyntaxError and struct.error among them.
    except Exception as error:
        return "unreadable image", f"{path} ({' '.join(str(error).split())})"
    if size is not None and (width, height) != size:
        expected = f"expected {size[0]} x {size[1]} pixels"
        return "image of another size", f"{expected}, {path} has {width} x {height}"
    return None


def image_file_problems(
    files: Iterable[tuple[Path, tuple[int, int] | None]], check: FileCheck
) -> list[tuple[str, str] | None]:
    """`image_file_problem` of many files, several at a time: most of it is waiting for the disk."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda file: image_file_problem(file[0], file[1], check), files))


def _ends_as_jpeg(path: Path, image: Image.Image) -> bool:
    """Whether the file is a JPEG with its end mark; of other files, only decoding tells."""
    if image.format != "JPEG":
        return False
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - JPEG_TAIL))
        return JPEG_END in file.read()
