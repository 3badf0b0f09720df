# SPDX-License-Identifier: MIT
"""Finding image files by the names that annotation tools give them; reading JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from unicodedata import normalize
from urllib.parse import unquote

from .problems import AnnotationError

# Label Studio adds this prefix to the name of an uploaded file.
UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-")
MAX_FILE_BYTES = 2**30  # bytes
MAX_PATH_LENGTH = 4096  # characters; the limit of Linux
MAX_DIGITS = 18  # of a width, a height or a class number: fits into 64 bits
CACHED_FOLDERS = 8  # folders whose listings are cached
LOCAL_FILE = "/data/local-files/?d="


def resolve_file(folder: Path, name: str) -> str:
    """Returns the name, under a folder, of the file that a tool calls `name`.

    Args:
        folder: folder of the images.
        name: name in the annotations.

    Returns:
        An existing name, see `find_file`, else `name`.

    >>> resolve_file(Path("none"), "a%20b.jpg")
    'a%20b.jpg'
    """
    return find_file(folder, name) or name


def find_file(folder: Path, name: str) -> str | None:
    """Returns the name, under a folder, of the file that a tool calls `name`; None if missing.

    The first of these names that exists is returned: the name as it is; with Windows separators;
    with percent escapes decoded; and, if the name is a URL or an absolute path, leaves the folder
    or has an upload prefix, its last part with and without that prefix. If none of them exists, the
    first that exists in another Unicode form is returned: see `as_on_disk`.
    """
    if file_exists(folder, name):
        return name
    bare = name.removeprefix(LOCAL_FILE)
    spellings = [name, bare, PureWindowsPath(bare).as_posix()]
    spellings += [unquote(spelling) for spelling in spellings[1:]]
    for spelling in list(spellings):
        last = PurePosixPath(spelling.partition("?")[0]).name
        short = UPLOAD_PREFIX.sub("", last, count=1) if UPLOAD_PREFIX.match(last) else last
        if short != last or spelling.startswith(("/", "../")) or "://" in spelling:
            spellings += [last, short]
    others = (
        relative_name(as_on_disk(folder / name), folder) for name in spellings if not name.isascii()
    )
    return next((name for name in chain(spellings, others) if file_exists(folder, name)), None)


def as_on_disk(path: Path) -> Path:
    """Returns the path as the disk spells it: as given, or in another Unicode form.

    Archives from a Mac decompose names (an accent is a character of its own); most annotation tools
    compose them. Upper and lower case stay different.

    Returns:
        The path itself if it exists, or if no form of its name exists.
    """
    if str(path).isascii() or len(str(path)) > MAX_PATH_LENGTH or os.path.exists(path):
        return path
    found = Path()
    for part in path.parts:
        found /= part if part.isascii() else _name_on_disk(found, part)
    return found


def _name_on_disk(folder: Path, name: str) -> str:
    for form in (name, composed(name), normalize("NFD", name)):
        if os.path.exists(folder / form):
            return form
    # Some names have neither form: macOS does not decompose all characters.
    try:
        names = _names_by_form(folder, folder.stat().st_mtime_ns)
    except (OSError, ValueError):
        return name
    return names.get(composed(name), name)


@lru_cache(CACHED_FOLDERS)
def _names_by_form(folder: Path, changed: int) -> dict[str, str]:
    """Maps composed names to those in the folder; its mtime `changed` invalidates the cache."""
    return {composed(name): name for name in sorted(os.listdir(folder))}


def composed(name: str) -> str:
    """Returns the composed form of a name, which is the same for all its Unicode forms."""
    return normalize("NFC", name)


def relative_name(path: Path, folder: Path) -> str:
    """Returns the path relative to the folder, or the whole path if it is not below it."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def file_exists(folder: Path, name: str) -> bool:
    """Returns whether the folder has a file of this name; False for invalid names."""
    # The file system rejects some names, such as those with a zero byte and those that are too
    # long.
    try:
        return bool(name) and (folder / name).is_file()
    except (OSError, ValueError):
        return False


def check_regular(path: Path) -> None:
    """Raises OSError unless an untrusted path is a regular file of limited size."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES:,} bytes")


def read_lines(path: Path) -> list[str]:
    """Reads the lines of a list, or of an image's labels.

    Raises:
        OSError: the file cannot be read, is not regular, or is larger than `MAX_FILE_BYTES`.
        UnicodeDecodeError: the file is not text.
    """
    check_regular(path)
    return path.read_text(encoding="utf-8-sig").splitlines()


def parse_integer(text: Any) -> Any:
    """Returns text of decimal digits as an integer, and any other value as it is."""
    if not isinstance(text, str) or not text.isdecimal() or len(text) > MAX_DIGITS:
        return text
    return int(text)


def is_yaml(path: Path) -> bool:
    """Returns whether a file is YAML by its suffix."""
    return path.suffix.lower() in (".yaml", ".yml")


def read_json(path: Path, **options: Any) -> Any:
    """Reads an annotation file in JSON.

    Args:
        path: the file.
        options: arguments of `json.loads`.

    Raises:
        AnnotationError: the file cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), **options)
    except OSError as error:
        raise AnnotationError(f"{path}: cannot read ({error.strerror})") from error
    # A file of nested brackets exhausts the parser's stack.
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{path}: not JSON ({error})") from error
