# SPDX-License-Identifier: MIT
"""Finds images that show the same picture, by imagehash."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps

from .image import WIDE_MODES, ImageError, open_image, to_tensor
from .problems import READERS

# Bits of 64 in which the hashes of one picture, saved in two ways, may differ: with 4 parts of 16
# bits, at least one part is then the same, and a table finds it.
MOST_BITS = 3
PARTS = 4
# Plain pictures have like hashes: so their thumbnails are compared, too. Side, and the largest mean
# difference of grey values.
THUMBNAIL, MOST_DIFFERENT = 32, 4.0


class Look(NamedTuple):
    """What an image looks like: the bits of its perceptual hash, and a grey thumbnail."""

    bits: np.ndarray  # bool [64]
    thumbnail: np.ndarray  # float32 [THUMBNAIL, THUMBNAIL]


def same_pictures(paths: Iterable[Path]) -> list[list[int]]:
    """Groups of images that show one picture, be it saved, reduced or compressed differently.

    Frames of a film in which hardly anything moves count as one picture, too. Mirrored, turned and
    cropped pictures are not found.

    Args:
        paths: image files; those that cannot be read are left out.

    Returns:
        Places in `paths`, ascending, of each group of two or more.

    Raises:
        ImportError: imagehash is not installed.
    """
    paths = list(paths)
    load_imagehash()
    with ThreadPoolExecutor(READERS) as pool:
        looks = list(pool.map(_look, paths))
    # Each image is compared with the first of each group alone.
    table: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    groups: dict[int, list[int]] = {}
    for place, look in enumerate(looks):
        if look is None:
            continue
        keys = [(part, bits.tobytes()) for part, bits in enumerate(look.bits.reshape(PARTS, -1))]
        firsts = dict.fromkeys(first for key in keys for first in table[key])
        # mypy: only the places of those that could be read are in the table.
        same = next((f for f in firsts if _alike(looks[f], look)), None)  # type: ignore[arg-type]
        if same is not None:
            groups[same].append(place)
            continue
        groups[place] = [place]
        for key in keys:
            table[key].append(place)
    return [group for group in groups.values() if len(group) > 1]


def load_imagehash():  # type: ignore[no-untyped-def]
    """The package imagehash; ImportError says how to get it."""
    try:
        import imagehash
    except ImportError as error:
        raise ImportError(
            "the same pictures are found by the package imagehash: pip install 'detops[plots]'"
        ) from error
    return imagehash


def _look(path: Path) -> Look | None:
    try:
        with open_image(path) as file:
            # A JPEG is decoded at a fraction of its size.
            file.draft("L", (4 * THUMBNAIL, 4 * THUMBNAIL))
            if file.mode in WIDE_MODES:
                # Pillow would cut these off at 255, and make most of them one white picture.
                image = Image.fromarray(to_tensor(file)[0].numpy())
            else:
                image = ImageOps.exif_transpose(file).convert("L")
    except ImageError:
        return None
    small = image.resize((THUMBNAIL, THUMBNAIL), Image.Resampling.BOX)
    bits = load_imagehash().phash(image).hash.ravel()
    return Look(bits, np.asarray(small, dtype=np.float32))


def _alike(one: Look, other: Look) -> bool:
    if int((one.bits != other.bits).sum()) > MOST_BITS:
        return False
    return float(np.abs(one.thumbnail - other.thumbnail).mean()) <= MOST_DIFFERENT
