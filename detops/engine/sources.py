# SPDX-License-Identifier: MIT
"""What `detops detect` is given: files, folders, patterns, lists, standard input, cameras."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from PIL import UnidentifiedImageError
from torch import Tensor

from ..data.image import IMAGE_SUFFIXES, ImageError, load_image, open_image

STANDARD_INPUT = "-"
# Of the files in a folder those and images are taken; a file that is named may have any other.
VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
CAMERA = re.compile(r"/dev/video\d+")
STREAM = re.compile(r"(https?|rtmp|rtsp)://.+")


class Source(NamedTuple):
    """Something to detect in.

    Attributes:
        name: a path or address; "stdin" for the picture on standard input.
        kind: live is a camera or a stream, which lasts until it is stopped.
        content: the file itself, of a picture on standard input.
    """

    name: str
    kind: Literal["picture", "video", "live"] = "picture"
    content: bytes | None = None

    @property
    def passes(self) -> bool:
        """Whether it is another one the next time, under the same name."""
        return self.kind == "live" or self.content is not None

    def read(self) -> Tensor:
        """The picture, uint8 ``[3, H, W]``.

        Raises:
            ImageError: it cannot be read.
        """
        if self.content is None:
            return load_image(self.name)
        try:
            return load_image(self.content)
        except ImageError as error:
            raise ImageError(f"{self.name}{str(error).removeprefix('image')}") from error


def list_sources(
    inputs: Sequence[str], standard_input: BinaryIO
) -> tuple[list[Source], list[ImageError]]:
    """What there is to detect in, each once, in the order of the inputs.

    Args:
        inputs: each of them is a file; a folder, of which the pictures and videos are taken, with
            those in the folders in it, by name; a pattern of `glob`, where no file has that name; a
            text file (.txt) of paths, a line each; ``-``, which is a picture or such a list on
            standard input; a camera (/dev/video0); or the address of a stream.
        standard_input: where ``-`` is read from.

    Returns:
        The sources, and what is wrong with inputs, or with what a pattern or a list names.
    """
    found = list(chain.from_iterable(_sources(name, standard_input) for name in inputs))
    sources = dict.fromkeys(each for each in found if isinstance(each, Source))
    return list(sources), [each for each in found if isinstance(each, ImageError)]


def _sources(name: str, standard_input: BinaryIO) -> Iterator[Source | ImageError]:
    """What an input has. A problem is one of the values: what comes after it is not lost."""
    if name == STANDARD_INPUT:
        content = standard_input.read()
        if _is_picture(content):
            yield Source("stdin", content=content)
        else:
            yield from _listed("standard input", content)
    elif name.lower().endswith(".txt") and os.path.isfile(name):
        try:
            content = Path(name).read_bytes()
        except OSError as error:
            yield ImageError(f"{name}: cannot be read: {error.strerror}")
        else:
            yield from _listed(name, content)
    elif glob.has_magic(name) and not os.path.lexists(name) and not STREAM.fullmatch(name):
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            yield ImageError(f"{name}: no file of such a name")
        for match in matches:
            yield from _at(match)
    else:
        yield from _at(name)


def _at(name: str) -> Iterator[Source | ImageError]:
    if STREAM.fullmatch(name) or CAMERA.fullmatch(name):
        yield Source(name, "live")
    elif os.path.isdir(name):
        yield from _in_folder(name)
    else:
        yield _file(name)


def _file(name: str) -> Source:
    return Source(name, "video" if name.lower().endswith(VIDEOS) else "picture")


def _in_folder(folder: str) -> Iterator[Source | ImageError]:
    empty = True
    for place, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            # Hidden ones are other programs' own, as those that macOS puts beside each picture.
            if file.lower().endswith(IMAGE_SUFFIXES + VIDEOS) and not file.startswith("."):
                empty = False
                yield _file(os.path.join(place, file))
    if empty:
        yield ImageError(f"{folder}: no picture and no video in this folder")


def _listed(name: str, content: bytes) -> Iterator[Source | ImageError]:
    lines = [line.strip() for line in os.fsdecode(content).splitlines()]
    if b"\0" in content or not any(lines):
        yield ImageError(f"{name}: neither a picture nor a list of paths")
        return
    for line in filter(None, lines):
        yield from _at(line)


def _is_picture(content: bytes) -> bool:
    try:
        with open_image(content):
            return True
    except ImageError as error:
        # One that is damaged or too large is a picture too; reading it tells.
        return not isinstance(error.__cause__, UnidentifiedImageError)
