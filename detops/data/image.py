# SPDX-License-Identifier: MIT
"""Reading images from wherever they are into one form: uint8 RGB, channels first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor


class ImageError(ValueError):
    """An image that cannot be read, or is not an image of a supported form."""


def load_image(image: str | Path | Image.Image | np.ndarray | Tensor) -> Tensor:
    """Reads an image.

    Args:
        image: a file's path; a PIL image; an array [H, W] or [H, W, 1|3|4] or a tensor [1|3, H, W],
            uint8 or floating in 0..1. Files are turned upright by their EXIF orientation.

    Returns:
        uint8 tensor [3, H, W], RGB.

    Raises:
        ImageError: the file is missing or unreadable, or the shape or dtype is none of these.
    """
    if isinstance(image, str | Path):
        image = _open(Path(image))
    if isinstance(image, Image.Image):
        image = np.array(image.convert("RGB"))
    if isinstance(image, np.ndarray):
        image = _array_to_tensor(image)
    if not isinstance(image, Tensor):
        raise ImageError(
            f"image: expected a path, PIL image, array or tensor, got {type(image).__name__}"
        )
    if image.dim() != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise ImageError(
            f"image: expected a tensor of shape [3, H, W] or [1, H, W], got {list(image.shape)}"
        )
    if image.is_floating_point():
        image = (image.clamp(0, 1) * 255).round().to(torch.uint8)
    if image.dtype != torch.uint8:
        raise ImageError(f"image: expected uint8 or floating values, got {image.dtype}")
    return image.expand(3, -1, -1).contiguous()


def _open(path: Path) -> Image.Image:
    if not path.is_file():
        raise ImageError(f"{path}: no such image file")
    try:
        with Image.open(path) as file:
            return ImageOps.exif_transpose(file).convert("RGB")
    # Pillow's decoders raise many types on damaged files, SyntaxError and struct.error among them.
    except Exception as error:
        raise ImageError(
            f"{path}: not a readable image ({' '.join(str(error).split())})"
        ) from error


def _array_to_tensor(array: np.ndarray) -> Tensor:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"image: expected an array of shape [H, W] or [H, W, 1|3|4], got {list(array.shape)}"
        )
    if array.shape[2] == 4:
        array = array[:, :, :3]
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
