# SPDX-License-Identifier: MIT
"""Inputs of `detops detect`: files, folders, patterns, lists, standard input, cameras."""

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
# Folders are searched for these suffixes and those of images. A file given by its own path may have
# any other suffix.
VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
CAMERA = re.compile(r"/dev/video\d+")
STREAM = re.compile(r"(https?|rtmp|rtsp)://.+")


class Source(NamedTuple):
    """An input of `detops detect`.

    Attributes:
        name: a path or address; "stdin" for the image on standard input.
        kind: "live" is a camera or a stream, which runs until it is stopped.
        content: the contents of the file, for an image on standard input.
    """

    name: str
    kind: Literal["image", "video", "live"] = "image"
    content: bytes | None = None

    @property
    def is_transient(self) -> bool:
        """True if the same name can give another input in the next run."""
        return self.kind == "live" or self.content is not None

    def read(self) -> Tensor:
        """Reads the image, uint8 ``[3, H, W]``.

        Raises:
            ImageError: the image cannot be read.
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
    """Lists the sources of all inputs in order, without duplicates.

    Args:
        inputs: each is a file; a folder, which is searched recursively for images and videos, by
            name; a `glob` pattern, unless a file has that name; a text file (.txt) of paths, one
            per line; ``-``, an image or such a list on standard input; a camera (/dev/video0); or
            the address of a stream.
        standard_input: the stream that ``-`` reads.

    Returns:
        The sources, and the errors of inputs or of paths in a pattern or a list.
    """
    found = list(chain.from_iterable(_sources(name, standard_input) for name in inputs))
    sources = dict.fromkeys(each for each in found if isinstance(each, Source))
    return list(sources), [each for each in found if isinstance(each, ImageError)]


def _sources(name: str, standard_input: BinaryIO) -> Iterator[Source | ImageError]:
    """Yields an input's sources. Errors are yielded too, so that later sources are not lost."""
    if name == STANDARD_INPUT:
        content = standard_input.read()
        if _is_image(content):
            yield Source("stdin", content=content)
        else:
            yield from _listed_sources("standard input", content)
    elif name.lower().endswith(".txt") and os.path.isfile(name):
        try:
            content = Path(name).read_bytes()
        except OSError as error:
            yield ImageError(f"{name}: cannot be read: {error.strerror}")
        else:
            yield from _listed_sources(name, content)
    elif glob.has_magic(name) and not os.path.lexists(name) and not STREAM.fullmatch(name):
        matches = sorted(glob.glob(name, recursive=True))
        if not matches:
            yield ImageError(f"{name}: no matching file")
        for match in matches:
            yield from _path_sources(match)
    else:
        yield from _path_sources(name)


def _path_sources(name: str) -> Iterator[Source | ImageError]:
    if STREAM.fullmatch(name) or CAMERA.fullmatch(name):
        yield Source(name, "live")
    elif os.path.isdir(name):
        yield from _folder_sources(name)
    else:
        yield _file_source(name)


def _file_source(name: str) -> Source:
    return Source(name, "video" if name.lower().endswith(VIDEO_SUFFIXES) else "image")


def _folder_sources(folder: str) -> Iterator[Source | ImageError]:
    empty = True
    for parent, folders, files in os.walk(folder):
        folders.sort()
        for file in sorted(files):
            # Skip hidden files, which other programs write, such as macOS next to each image.
            if file.lower().endswith(IMAGE_SUFFIXES + VIDEO_SUFFIXES) and not file.startswith("."):
                empty = False
                yield _file_source(os.path.join(parent, file))
    if empty:
        yield ImageError(f"{folder}: no images or videos in this folder")


def _listed_sources(name: str, content: bytes) -> Iterator[Source | ImageError]:
    lines = [line.strip() for line in os.fsdecode(content).splitlines()]
    if b"\0" in content or not any(lines):
        yield ImageError(f"{name}: neither an image nor a list of paths")
        return
    for line in filter(None, lines):
        yield from _path_sources(line)


def _is_image(content: bytes) -> bool:
    try:
        with open_image(content):
            return True
    except ImageError as error:
        # A damaged or too large image is still an image; reading it reports the error.
        return not isinstance(error.__cause__, UnidentifiedImageError)
