# SPDX-License-Identifier: MIT
"""Loading images from any source into one form: uint8 RGB, channels first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, BytesIO, FileIO, UnsupportedOperation
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

# Size limit of files: 32768 x 32768 pixels take 3 GiB as uint8 RGB, and about 10 GiB while they are
# decoded.
MAX_PIXELS = 2**30
# Formats of photographs.
PHOTO_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")
# Pillow's names of all supported formats. Of Pillow's other decoders, one runs Ghostscript on the
# file, and few are reviewed often.
FORMATS = (*PHOTO_FORMATS, "AVIF", "ICO", "JPEG2000", "MPO", "PCX", "PPM", "TGA")
# Suffixes of the images in a folder, common ones first. Rare suffixes of TGA (.vst) and animations
# (.avifs) are excluded; a file given by its own path may have any suffix.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp", ".avif", ".gif", ".jfif", ".jpe"),
    *(".jp2", ".j2c", ".j2k", ".jpc", ".jpf", ".jpx", ".apng", ".ico", ".mpo", ".pcx", ".tga"),
    *(".pbm", ".pfm", ".pgm", ".pnm", ".ppm"),
)
# Modes that Pillow converts to RGB correctly. Modes of more than 8 bits are excluded, because
# Pillow would clip their values at 255.
BYTE_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr")
WIDE_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
UINT16_MAX = 65535
HALF_STEP = 0.5 / 255  # values outside 0..1 by at most this still round to 0 or 255
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
EXIF_ORIENTATION = 0x0112
TIFF_BITS, TIFF_PHOTOMETRIC, TIFF_SAMPLE_FORMAT = 258, 262, 339
TIFF_SIGNED = 2
SMALL_READ = 1 << 20  # bytes
LARGE_FILE = 1 << 30


class ImageError(ValueError):
    """An image that cannot be read, or that has an unsupported form."""


class LargeImageError(ImageError):
    """An image that exceeds the limit on pixels."""


def load_image(
    image: str | Path | bytes | Image.Image | np.ndarray | Tensor,
    *,
    max_pixels: int | None = None,
    formats: Sequence[str] | None = None,
) -> Tensor:
    """Reads an image.

    Values are scaled by the range of their type, never by the values that occur, so that brightness
    stays comparable between images: 8 bits by 255, 16 bits by 65535 (12-bit TIFF by 4095), and
    floats are in 0..1. 32-bit integers, to which some formats widen 16-bit ones, must be in
    0..65535. Values out of range are rejected, not clipped.

    Args:
        image: path or contents of a file; a PIL image; an array [H, W] or [H, W, 1|3|4] or a tensor
            [1|3, H, W], uint8, uint16 or floating in 0..1. Files may have any of `FORMATS`:
            bilevel, grey or RGB of 8 or 16 bits, grey floats, palettes, CMYK, YCbCr. They are
            turned upright by their EXIF orientation. Alpha is dropped, and so are all frames but
            the first.
        max_pixels: limit for a file, `MAX_PIXELS` by default; checked by its header before
            decoding.
        formats: Pillow's names of the accepted formats; `FORMATS` by default.

    Returns:
        uint8 tensor [3, H, W], RGB.

    Raises:
        ImageError: the file is missing, unreadable, of an unsupported format or mode, or
            (LargeImageError) larger than `max_pixels`; or the shape, dtype or range is unsupported.

    Example:
        >>> load_image(torch.full((3, 4, 6), 0.5)).shape
        torch.Size([3, 4, 6])
    """
    if isinstance(image, str):
        image = Path(image)
    if isinstance(image, Path | bytes | Image.Image):
        with open_image(image, max_pixels, formats) as file:
            return to_tensor(file)
    try:
        return _from_array(image)
    except ImageError as error:
        raise ImageError(f"image: {error}") from error


class _File(BufferedReader):
    """A file that may be damaged, or that may shrink while it is read."""

    def __init__(self, path: Path) -> None:
        self.file = FileIO(path)
        super().__init__(self.file)

    @property
    def size(self) -> int:
        """Current size in bytes."""
        return os.fstat(self.file.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads at most ``size`` bytes, or the rest if it is negative or None.

        Python allocates the whole requested size, and a damaged file requests gigabytes.
        """
        if size is not None and size > SMALL_READ:
            size = max(0, min(size, self.size - self.tell()))
        return super().read(size)

    def fileno(self) -> int:
        """Returns the descriptor of a large file; raises for smaller ones.

        Pillow passes it to libtiff, which maps the file into memory. If the file shrinks, reading
        the missing part of that memory crashes the process. Without a descriptor, Pillow reads the
        file.

        Raises:
            io.UnsupportedOperation: the file is not large.
        """
        if self.size <= LARGE_FILE:
            raise UnsupportedOperation("fileno")
        return super().fileno()


@contextmanager
def open_image(
    source: Path | bytes | Image.Image,
    max_pixels: int | None = None,
    formats: Sequence[str] | None = None,
) -> Iterator[Image.Image]:
    """Opens an image file without decoding it; all errors in the block name the file.

    Args:
        source: path of the file, or its contents or a PIL image, which errors call "image".
        max_pixels: as in `load_image`.
        formats: as in `load_image`.

    Raises:
        ImageError: the file is missing, unreadable, without pixels, of another format, or
            (LargeImageError) larger than `max_pixels`.
        MemoryError: there is not enough memory for the image.
    """
    name = str(source) if isinstance(source, Path) else "image"
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    formats = FORMATS if formats is None else formats
    mode = ""
    try:
        with _opened(source, formats) as image:
            mode = f", mode {image.mode}"
            pixels = image.width * image.height
            if pixels == 0:
                raise ImageError(f"no pixels in {image.width} x {image.height}")
            if pixels > max_pixels and image is not source:
                raise Image.DecompressionBombError
            yield image
    except MemoryError:
        raise  # the file is not at fault
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error
    except Image.DecompressionBombError as error:
        raise LargeImageError(
            f"{name}: more than the limit of {max_pixels:,} pixels; split it into parts"
        ) from error
    except UnidentifiedImageError as error:
        expected = f"expected {', '.join(formats)}"
        raise ImageError(f"{name}: not a readable image ({expected})") from error
    # Pillow's decoders raise many types on damaged files, SyntaxError and struct.error among them.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{name}: not a readable image{mode} ({reason})") from error


@contextmanager
def _opened(source: Path | bytes | Image.Image, formats: Sequence[str]) -> Iterator[Image.Image]:
    """Opens a source; a PIL image is already open, and stays open."""
    if isinstance(source, Image.Image):
        yield source
        return
    if isinstance(source, Path) and not source.is_file():
        raise ImageError("not a regular file" if source.exists() else "no such image file")
    known = _supported(formats)
    with (
        _pixel_limit(),
        _File(source) if isinstance(source, Path) else BytesIO(source) as file,
        Image.open(file, formats=known) as image,
    ):
        yield image


def _supported(formats: Sequence[str]) -> list[str]:
    """Returns the formats that this build of Pillow reads; MPO is not listed, but JPEG reads it."""
    Image.init()
    return [name for name in formats if name in Image.OPEN]


def upright_size(image: Image.Image) -> tuple[int, int]:
    """Returns the width and height after the EXIF orientation is applied."""
    is_rotated = image.getexif().get(EXIF_ORIENTATION, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if is_rotated else image.size


def check_decodes(image: Image.Image) -> None:
    """Decodes an image; raises where `load_image` would, ImageError or Pillow's own errors."""
    image.load()
    _check_mode(image)
    if image.mode in WIDE_MODES:
        _wide_to_bytes(image, image)


class _PixelLimit:
    """Replaces Pillow's process-wide pixel limit with ours while any thread reads an image here."""

    def __init__(self) -> None:
        self.lock, self.readers = Lock(), 0
        self.limit: int | None = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.readers == 0:
                self.limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, MAX_PIXELS
            self.readers += 1
        try:
            yield
        finally:
            with self.lock:
                self.readers -= 1
                if self.readers == 0:
                    Image.MAX_IMAGE_PIXELS = self.limit


_pixel_limit = _PixelLimit()


def to_tensor(image: Image.Image) -> Tensor:
    """Converts a PIL image as `load_image` does; its ImageError does not name the file."""
    file = image
    _check_mode(file)
    # exif_transpose copies even images that it does not turn.
    if file.getexif().get(EXIF_ORIENTATION, 1) in range(2, 9):
        image = ImageOps.exif_transpose(file)
    if file.mode in WIDE_MODES:
        return _wide_to_bytes(image, file).expand(3, -1, -1).contiguous()
    if file.mode != "RGB":
        image = image.convert("RGB")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _check_mode(image: Image.Image) -> None:
    if image.mode not in BYTE_MODES + WIDE_MODES:
        raise ImageError(
            f"mode {image.mode} is not supported; expected {', '.join(BYTE_MODES + WIDE_MODES)}"
        )
    # Pillow silently misreads the following.
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return
    if image.mode in BYTE_MODES and TIFF_SIGNED in tags.get(TIFF_SAMPLE_FORMAT, ()):
        raise ImageError(f"mode {image.mode}: TIFF of signed bytes is not supported")
    if image.mode in ("I", "F") and tags.prefix == b"MM" and image.info.get("compression") != "raw":
        raise ImageError(f"mode {image.mode}: TIFF compressed in big-endian order is not supported")


def _wide_to_bytes(image: Image.Image, file: Image.Image) -> Tensor:
    """Converts grey values of more than 8 bits to uint8 [1, H, W], by the tags of `file`."""
    try:
        return _to_bytes(_wide_values(np.array(image), image.mode, file))
    except ImageError as error:
        raise ImageError(f"mode {image.mode}: {error}") from error


def _wide_values(values: np.ndarray, mode: str, file: Image.Image) -> Tensor:
    """Returns grey values, uint16 or floating [1, H, W]."""
    white_is_zero = _tiff_tag(file, TIFF_PHOTOMETRIC) == 0
    if mode == "F":
        return torch.from_numpy(1 - values if white_is_zero else values)[None]
    max_value = UINT16_MAX
    if mode != "I":
        max_value = 2 ** max(_tiff_tag(file, TIFF_BITS) or (16,)) - 1
    elif values.min() < 0 or values.max() > UINT16_MAX:
        raise ImageError(
            f"expected integers in 0..{UINT16_MAX}, got {values.min()} to {values.max()}"
        )
    values = values.astype(np.uint32)
    if white_is_zero:
        values = max_value - values
    # Scale 12 bits to 16. Rounding twice does not affect the 8 bits of the result.
    values = (
        (values * UINT16_MAX + max_value // 2) // max_value if max_value != UINT16_MAX else values
    )
    return torch.from_numpy(values.astype(np.uint16))[None]


def _tiff_tag(image: Image.Image, tag: int) -> Any:
    return getattr(image, "tag_v2", {}).get(tag)


def _to_bytes(values: Tensor) -> Tensor:
    """Converts values of any supported dtype to uint8."""
    if values.dtype == torch.uint8:
        return values
    if values.dtype == torch.uint16:
        return ((values.int() * 255 + UINT16_MAX // 2) // UINT16_MAX).to(torch.uint8)
    if values.dtype not in FLOATS:
        raise ImageError(f"expected uint8, uint16 or floating values, got {values.dtype}")
    low, high = (float(value) for value in values.float().aminmax())
    if not (low >= -HALF_STEP and high <= 1 + HALF_STEP):  # also rejects NaN
        raise ImageError(f"expected floating values in 0..1, got {low:g} to {high:g}")
    return (values.float().clamp(0, 1) * 255).round().to(torch.uint8)


def _from_array(image: np.ndarray | Tensor) -> Tensor:
    """Converts an array or tensor of a supported form to uint8 [3, H, W]."""
    if isinstance(image, np.ndarray):
        image = _array_to_tensor(image)
    if not isinstance(image, Tensor):
        raise ImageError(f"expected a path, PIL image, array or tensor, got {type(image).__name__}")
    if image.layout != torch.strided or image.is_nested or image.is_meta:
        kind = "nested" if image.is_nested else "meta" if image.is_meta else str(image.layout)
        raise ImageError(f"expected a dense tensor with memory, got {kind}")
    if image.dim() != 3 or image.shape[0] not in (1, 3) or 0 in image.shape:
        raise ImageError(
            f"expected a tensor of shape [3, H, W] or [1, H, W], got {list(image.shape)}"
        )
    return _to_bytes(image.detach()).expand(3, -1, -1).contiguous()


def _array_to_tensor(array: np.ndarray) -> Tensor:
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4):
        raise ImageError(
            f"expected an array of shape [H, W] or [H, W, 1|3|4], got {list(array.shape)}"
        )
    if array.shape[2] == 4:
        array = array[:, :, :3]
    if array.dtype.kind not in "uif" or array.dtype == np.longdouble:
        raise ImageError(f"expected uint8, uint16 or floating values, got {array.dtype}")
    # Tensors require native byte order.
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))
