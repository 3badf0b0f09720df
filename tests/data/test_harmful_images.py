# SPDX-License-Identifier: MIT
"""Images that could do harm: too large, damaged, truncated while they are read, or no files."""

import os
import subprocess
import sys
import threading
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from fuzz import contents
from PIL import Image, ImageFile

from detops.data import ImageError, load_image
from detops.data import image as image_module
from detops.data.problems import image_file_report


def test_pixel_limit_is_independent_of_pillow(tmp_path, monkeypatch):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_image(tmp_path / "a.png").shape == (3, 30, 40)
    for limit in (599, 1199):  # Pillow warns above its limit, and raises above twice the limit
        monkeypatch.setattr(image_module, "MAX_PIXELS", limit)
        with (
            warnings.catch_warnings(),
            pytest.raises(ImageError, match=rf"a\.png: more .* {limit:,}"),
        ):
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            load_image(tmp_path / "a.png")
    assert Image.MAX_IMAGE_PIXELS == 100


def test_threads_leave_the_pillow_pixel_limit_unchanged(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    before = Image.MAX_IMAGE_PIXELS
    threads = [
        threading.Thread(target=lambda: [load_image(tmp_path / "a.png") for _ in range(50)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert before is not None and Image.MAX_IMAGE_PIXELS == before


@pytest.mark.parametrize("content", contents.unsupported_image_files())
def test_loading_never_starts_a_process(tmp_path, monkeypatch, content):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process is started"))
    path = tmp_path / "photo.png"
    path.write_bytes(content)
    with pytest.raises(ImageError, match=rf"^{path}: not a readable image \(expected .*PNG"):
        load_image(path)
    assert image_file_report(path, None, "header").problem[0] == "unreadable image"


def test_pipes_and_devices_raise(tmp_path):
    os.mkfifo(tmp_path / "a.png")
    for path in (tmp_path / "a.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match=f"^{path}: not a regular file$"):
            load_image(path)


def test_lack_of_memory_raises_memory_error(tmp_path, monkeypatch):
    Image.new("L", (40, 30)).save(tmp_path / "a.png")

    def load(self):
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    for source in (tmp_path / "a.png", (tmp_path / "a.png").read_bytes()):
        with pytest.raises(MemoryError):
            load_image(source)


def test_false_png_chunk_length_allocates_little_memory(tmp_path):
    path = tmp_path / "a.png"
    Image.new("L", (40, 30)).save(path)
    content = bytearray(path.read_bytes())
    at = content.index(b"IDAT")
    content[at - 4 : at] = (2**31 - 1).to_bytes(4, "big")
    path.write_bytes(content)
    tracemalloc.start()
    assert load_image(path).shape == (3, 30, 40)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


# A separate process, which truncates files while they are decoded.
CUT = """
import os, sys, threading, time
from detops.data import ImageError, load_image

for path in sys.argv[1:]:
    whole = open(path, "rb").read()
    began = time.perf_counter()
    load_image(path)
    takes = time.perf_counter() - began
    for share in range(1, 10):
        with open(path, "wb") as file:
            file.write(whole)
        cut = threading.Timer(takes * share / 10, os.truncate, (path, 1000))
        cut.start()
        try:
            load_image(path)
        except ImageError:
            pass
        cut.join()
"""


@pytest.mark.slow
def test_truncation_during_decoding_does_not_crash(tmp_path):
    values = np.random.default_rng(0).integers(0, 64, (1500, 1500, 3), dtype=np.uint8)
    paths = [tmp_path / name for name in ("a.bmp", "a.ppm", "a.png", "raw.tif", "lzw.tif")]
    for path in paths:
        options = {"compression": "tiff_lzw"} if path.name == "lzw.tif" else {}
        Image.fromarray(values).save(path, **options)
    subprocess.run([sys.executable, "-c", CUT, *paths], check=True)
