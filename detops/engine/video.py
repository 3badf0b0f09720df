# SPDX-License-Identifier: MIT
"""Reading and writing videos, streams and cameras with PyAV, which is imported on demand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..data import ImageError
from .checkpoint import OutputError
from .sources import CAMERA, STREAM

# FFmpeg detects formats by contents. Its other formats include playlists, which make it open
# further files.
FORMATS = "asf,avi,h264,hevc,m4v,matroska,mov,mpeg,mpegts,mpegvideo"
FILE_OPTIONS = {"format_whitelist": FORMATS, "protocol_whitelist": "file"}
DEFAULT_RATE = Fraction(25)  # frames per second, if a stream does not state its rate


@contextmanager
def open_video(name: str) -> Iterator[tuple[Fraction, Iterator[Tensor]]]:
    """Opens a video file, a camera by its device, or a stream by its address.

    Yields:
        Frames per second, and an iterator over the frames, uint8 ``[3, H, W]``, turned upright.

    Raises:
        ImageError: the video cannot be opened or decoded, here or during iteration; or PyAV is
            missing.
    """
    av = _pyav(name)
    # FFmpeg treats a camera as a format, not a file. A stream may be a playlist.
    is_camera, is_stream = CAMERA.fullmatch(name), STREAM.fullmatch(name)
    options = {} if is_camera or is_stream else FILE_OPTIONS
    try:
        container = av.open(name, format="v4l2" if is_camera else None, options=options)
    except av.FFmpegError as error:
        raise _unreadable(name, error) from error
    with container:
        if not container.streams.video:
            raise ImageError(f"{name}: contains no video")
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        rate = stream.average_rate or stream.guessed_rate or DEFAULT_RATE
        yield rate, _frames(name, container, stream)


class VideoWriter:
    """Writes images of one size to a video, H.264 in MP4.

    Args:
        path: the file.
        rate: frames per second.

    Raises:
        OutputError: the file cannot be written; raised by `add` or on exit.
    """

    def __init__(self, path: Path, rate: Fraction) -> None:
        self.path, self.rate = path, rate
        self._av = _pyav(str(path))
        # PyAV opens the file when the first frame is written.
        self._container = self._av.open(str(path), "w", format="mp4")
        self._stream: Any = None

    def add(self, image: Image.Image) -> None:
        """Adds a frame.

        An odd last row or column is cropped, because the format stores colours in blocks of 2x2.
        """
        with self._writing():
            if self._stream is None:
                stream = self._container.add_stream("libx264", rate=self.rate)
                stream.width, stream.height = image.width // 2 * 2, image.height // 2 * 2
                stream.pix_fmt = "yuv420p"
                self._stream = stream
            image = image.crop((0, 0, self._stream.width, self._stream.height))
            frame = self._av.VideoFrame.from_image(image)
            self._container.mux(self._stream.encode(frame))

    def __enter__(self) -> VideoWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._writing():
            try:
                if self._stream is not None:
                    self._container.mux(self._stream.encode(None))
            finally:
                self._container.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._av.FFmpegError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror}") from error


def _pyav(name: str) -> Any:
    try:
        import av
    except ImportError as error:
        raise ImageError(
            f"{name}: videos require PyAV, which is not installed: pip install 'detops[video]'"
        ) from error
    return av


def _frames(name: str, container: Any, stream: Any) -> Iterator[Tensor]:
    try:
        for frame in container.decode(stream):
            yield _pixels(frame)
    except _pyav(name).FFmpegError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Any) -> ImageError:
    return ImageError(f"{name}: not a readable video ({error.strerror})")


def _pixels(frame: Any) -> Tensor:
    pixels = frame.to_ndarray(format="rgb24")
    # Degrees counterclockwise; phones held upright record their rotation this way.
    pixels = np.rot90(pixels, round(frame.rotation / 90))
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
