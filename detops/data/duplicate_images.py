# SPDX-License-Identifier: MIT
"""Finding images that show the same picture, with imagehash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .image import WIDE_MODES, ImageError, open_image, to_tensor
from .problems import READER_THREADS

# Maximum number of differing bits, of 64, between hashes of the same picture. With 4 parts of 16
# bits, at least one part is then equal, and a table lookup finds it.
MAX_DIFFERENT_BITS = 3
HASH_PARTS = 4
# Plain pictures have similar hashes, so thumbnails are compared too. Side in pixels, and largest
# mean difference of grey values.
THUMBNAIL_SIDE, MAX_GREY_DIFFERENCE = 32, 4.0


class Fingerprint(NamedTuple):
    """Appearance of an image: the bits of its perceptual hash, and a grey thumbnail."""

    bits: np.ndarray  # bool [64]
    thumbnail: np.ndarray  # float32 [THUMBNAIL_SIDE, THUMBNAIL_SIDE]


def find_duplicate_images(paths: Iterable[Path]) -> list[list[int]]:
    """Groups images that show the same picture, possibly saved, scaled or compressed differently.

    Film frames in which hardly anything moves count as the same picture too. Mirrored, rotated and
    cropped pictures are not found.

    Args:
        paths: image files; unreadable ones are skipped.

    Returns:
        Indices into `paths`, ascending, of each group of two or more.

    Raises:
        ImportError: imagehash is not installed.
    """
    paths = list(paths)
    load_imagehash()
    with ThreadPoolExecutor(READER_THREADS) as pool:
        fingerprints = list(pool.map(_fingerprint, paths))
    # Compare each image only with the first image of each group.
    table: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = {}
    for index, fingerprint in enumerate(fingerprints):
        if fingerprint is None:
            continue
        keys = [
            (part, bits.tobytes())
            for part, bits in enumerate(fingerprint.bits.reshape(HASH_PARTS, -1))
        ]
        firsts = dict.fromkeys(first for key in keys for first in table[key])
        # mypy: the table contains only readable images.
        same = next((f for f in firsts if _is_duplicate(fingerprints[f], fingerprint)), None)  # type: ignore[arg-type]
        if same is not None:
            groups[same].append(index)
            continue
        groups[index] = [index]
        for key in keys:
            table[key].append(index)
    return [group for group in groups.values() if len(group) > 1]


def load_imagehash():  # type: ignore[no-untyped-def]
    """Imports imagehash; the ImportError contains the install command."""
    try:
        import imagehash
    except ImportError as error:
        raise ImportError(
            "finding duplicate images requires imagehash: pip install 'detops[plots]'"
        ) from error
    return imagehash


def _fingerprint(path: Path) -> Fingerprint | None:
    try:
        with open_image(path) as file:
            # Decode a JPEG at a fraction of its size.
            file.draft("L", (4 * THUMBNAIL_SIDE, 4 * THUMBNAIL_SIDE))
            if file.mode in WIDE_MODES:
                # Pillow would clip these at 255, which turns most of them into the same white
                # picture.
                image = Image.fromarray(to_tensor(file)[0].numpy())
            else:
                image = ImageOps.exif_transpose(file).convert("L")
    except ImageError:
        return None
    small = image.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX)
    bits = load_imagehash().phash(image).hash.ravel()
    return Fingerprint(bits, np.asarray(small, dtype=np.float32))


def _is_duplicate(one: Fingerprint, other: Fingerprint) -> bool:
    if int((one.bits != other.bits).sum()) > MAX_DIFFERENT_BITS:
        return False
    return float(np.abs(one.thumbnail - other.thumbnail).mean()) <= MAX_GREY_DIFFERENCE
