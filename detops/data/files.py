# SPDX-License-Identifier: MIT
"""Which file is meant by the name that an annotation tool gives an image; reading JSON."""

from __future__ import annotations

import errno
import json
import re
import stat
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from urllib.parse import unquote

from .problems import AnnotationError

# What Label Studio puts in front of the name of an uploaded file.
UPLOAD_PREFIX = re.compile(r"[0-9a-f]{8}-")
LARGEST_LIST = 2**30  # bytes
LOCAL_FILE = "/data/local-files/?d="


def named_file(folder: Path, name: str) -> str:
    """The name, under a folder, of the file that a tool calls `name`.

    Args:
        folder: of the images.
        name: as the annotations have it.

    Returns:
        A name that is there, see `found_file`, else `name`.

    >>> named_file(Path("none"), "a%20b.jpg")
    'a%20b.jpg'
    """
    return found_file(folder, name) or name


def found_file(folder: Path, name: str) -> str | None:
    """The name, under a folder, of the file that a tool calls `name`; None if it is not there.

    Taken is the first of these that is there: the name as it is; with Windows' separators; with its
    percent escapes read; and, of a name that is an address, an absolute path, leaves the folder or
    has an upload's prefix, its last part with and without that prefix.
    """
    if is_there(folder, name):
        return name
    bare = name.removeprefix(LOCAL_FILE)
    spellings = [name, bare, PureWindowsPath(bare).as_posix()]
    spellings += [unquote(spelling) for spelling in spellings[1:]]
    for spelling in list(spellings):
        last = PurePosixPath(spelling.partition("?")[0]).name
        short = UPLOAD_PREFIX.sub("", last, count=1) if UPLOAD_PREFIX.match(last) else last
        if short != last or spelling.startswith(("/", "../")) or "://" in spelling:
            spellings += [last, short]
    return next((spelling for spelling in spellings if is_there(folder, spelling)), None)


def is_there(folder: Path, name: str) -> bool:
    """Whether the folder has a file of this name, which may be one that no file can have."""
    # The file system refuses some names, such as one with a zero byte or one that is too long.
    try:
        return bool(name) and (folder / name).is_file()
    except (OSError, ValueError):
        return False


def check_regular(path: Path) -> None:
    """Raises OSError unless a file, which a stranger may have named, is one that has an end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if status.st_size > LARGEST_LIST:
        raise OSError(errno.EFBIG, f"more than {LARGEST_LIST:,} bytes")


def read_lines(path: Path) -> list[str]:
    """The lines of a list, or of an image's labels.

    Raises:
        OSError: it cannot be read, is no regular file, or larger than `LARGEST_LIST`.
        UnicodeDecodeError: it is no text.
    """
    check_regular(path)
    return path.read_text(encoding="utf-8-sig").splitlines()


def is_yaml(path: Path) -> bool:
    """Whether a file is YAML by its name."""
    return path.suffix.lower() in (".yaml", ".yml")


def read_json(path: Path) -> Any:
    """What an annotation file in JSON has.

    Raises:
        AnnotationError: it cannot be read or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AnnotationError(f"{path}: cannot read ({error.strerror})") from error
    # A file of nothing but brackets exhausts the parser's stack.
    except (ValueError, RecursionError) as error:
        raise AnnotationError(f"{path}: not JSON ({error})") from error
