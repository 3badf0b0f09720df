# SPDX-License-Identifier: MIT
"""Fonts for names in any script."""

from __future__ import annotations

import functools
import subprocess
import sys

from PIL import ImageFont

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont
# Tags need scalable fonts: no bitmaps, and no colour glyphs.
PATTERN = ":charset={}:scalable=true:color=false:slant=0{}"
REGULAR = ":weight=80"
DIGITS = "0123456789."  # of the scores next to the names


def font_for(text: str, size: float) -> Font:
    """Returns a font with all characters of a text: Pillow's own, or one of the system.

    fontconfig finds the fonts of the system. If none has all characters, this is reported once on
    stderr, and Pillow's own font draws the missing ones as boxes.

    Args:
        text: text to draw.
        size: font size in pixels.
    """
    characters = "".join(sorted({c for c in text if not c.isascii() and c.isprintable()}))
    path = font_file(characters) if characters else None
    return _loaded(path, size)


@functools.lru_cache(maxsize=32)
def _loaded(path: str | None, size: float) -> Font:
    return ImageFont.truetype(path, size) if path else ImageFont.load_default(size=size)


@functools.cache
def font_file(characters: str) -> str | None:
    """Returns the file of a system font with these characters, or None if there is none."""
    codes = " ".join(f"{ord(character):x}" for character in characters + DIGITS)
    try:
        for weight in (REGULAR, ""):
            command = ["fc-list", PATTERN.format(codes, weight), "file"]
            listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            # Shortest name first: the regular font of a family, before its condensed and serif
            # variants.
            files = sorted(
                (line.partition(": ")[0] for line in listed.splitlines()), key=_by_length
            )
            if files:
                return files[0]
        problem = (
            "no font on this system has them: install one, such as the Noto font of that script"
        )
    except (OSError, subprocess.CalledProcessError):
        problem = "fontconfig is needed to find a font that has them, but fc-list cannot be run"
    _report_once(problem, f"detops: cannot draw {characters}: {problem}")
    return None


_reported: set[str] = set()


def _report_once(problem: str, text: str) -> None:
    if problem not in _reported:
        _reported.add(problem)
        print(text, file=sys.stderr)


def _by_length(file: str) -> tuple[int, str]:
    return len(file), file
