# SPDX-License-Identifier: MIT
"""Loading of images of every mode and format, with the right values."""

import json
from io import BytesIO

import numpy as np
import pytest
import tifffile
import torch
from fuzz import contents
from hypothesis import given
from hypothesis.extra.numpy import (
    array_shapes,
    arrays,
    byte_string_dtypes,
    scalar_dtypes,
    unicode_string_dtypes,
)
from hypothesis.strategies import booleans, one_of
from PIL import Image, ImageOps, UnidentifiedImageError

from detops.data import CocoDetection, ImageError, load_image
from detops.data.image import FORMATS, LargeImageError
from detops.engine import Detector

# Multiples of an eighth of the range, including both ends.
FRACTIONS = np.array([[0, 1, 2, 3], [4, 5, 6, 8]]) / 8
GREY = torch.from_numpy((FRACTIONS * 255).round().astype(np.uint8)).expand(3, -1, -1)


def is_close(found, expected, tolerance=0):
    assert found.dtype == torch.uint8 and found.shape == expected.shape
    return (found.int() - expected.int()).abs().max() <= tolerance


def scaled(max_value=65535, dtype=np.uint16):
    return (FRACTIONS * max_value).round().astype(dtype)


def test_16_bit_png_is_rounded_to_8_bits(tmp_path):
    Image.fromarray(scaled()).save(tmp_path / "a.png")
    assert Image.open(tmp_path / "a.png").mode == "I;16"
    assert is_close(load_image(tmp_path / "a.png"), GREY)
    # All 16 bits count: a value rounds to the nearest of 256, not down to its high byte.
    Image.fromarray(np.array([[128, 129, 65407, 65406]], np.uint16)).save(tmp_path / "b.png")
    assert load_image(tmp_path / "b.png")[0].tolist() == [[0, 1, 255, 254]]


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize(
    ("values", "options"),
    [
        (scaled(), {}),
        (scaled(), {"photometric": "miniswhite"}),
        (scaled(255, np.uint8), {}),
        (scaled(255, np.uint8), {"photometric": "miniswhite"}),
        (scaled(65535, np.int32), {}),
        (scaled(65535, np.uint32), {}),
        (FRACTIONS.astype(np.float32), {}),
        (np.stack([scaled()] * 3, -1), {"photometric": "rgb"}),
        (np.stack([scaled()] * 4, -1), {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
    ],
)
def test_tiff_values_are_scaled_to_8_bits(tmp_path, values, options, byteorder, compression):
    tifffile.imwrite(
        tmp_path / "a.tif", values, byteorder=byteorder, compression=compression, **options
    )
    try:
        Image.open(tmp_path / "a.tif")
    except UnidentifiedImageError:
        pytest.skip("Pillow does not know this one, and says so")
    if values.dtype.itemsize == 4 and byteorder == ">" and compression is not None:
        with pytest.raises(ImageError, match="compressed in big-endian order is not supported"):
            load_image(tmp_path / "a.tif")
        return
    expected = 255 - GREY if options.get("photometric") == "miniswhite" else GREY
    # Pillow returns the high byte of 16-bit colours.
    assert is_close(load_image(tmp_path / "a.tif"), expected, 1 if values.ndim == 3 else 0)


def test_12_bit_tiff_is_scaled_to_8_bits(tmp_path):
    # Two values take three bytes, and each row starts a byte; written by hand, tag by tag.
    samples = bytes([0x00, 0x0F, 0xFF, 0x80, 0x00, 0x00])
    tags = [(256, 4, 2), (257, 4, 2), (258, 3, 12), (259, 3, 1), (262, 3, 1), (277, 3, 1)]
    tags += [(273, 4, 8), (278, 4, 2), (279, 4, len(samples))]
    entries = b"".join(
        tag.to_bytes(2, "little")
        + kind.to_bytes(2, "little")
        + (1).to_bytes(4, "little")
        + value.to_bytes(4, "little")
        for tag, kind, value in sorted(tags)
    )
    header = b"II*\0" + (8 + len(samples)).to_bytes(4, "little")
    content = header + samples + len(tags).to_bytes(2, "little") + entries + bytes(4)
    (tmp_path / "a.tif").write_bytes(content)
    assert load_image(tmp_path / "a.tif")[0].tolist() == [[0, 255], [128, 0]]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (FRACTIONS.astype(np.float32) * 255, r"a\.tif: mode F: .*0\.\.1, got 0 to 255"),
        (FRACTIONS.astype(np.float32) - 1, r"a\.tif: mode F: .*0\.\.1, got -1 to 0"),
        (np.full((2, 2), np.nan, np.float32), r"a\.tif: mode F: .*0\.\.1, got nan to nan"),
        (np.full((2, 2), -1, np.int32), r"a\.tif: mode I: .*0\.\.65535, got -1 to -1"),
        (np.full((2, 2), 2**32 - 1, np.uint32), r"a\.tif: mode I: .*0\.\.65535, got -1 to -1"),
        (np.full((2, 2), 65536, np.int32), r"a\.tif: mode I: .*0\.\.65535, got 65536 to 65536"),
        (np.full((2, 2), -1, np.int8), r"a\.tif: mode L: TIFF of signed bytes is not supported"),
        (np.zeros((2, 2, 3), np.float32), r"a\.tif: not a readable image"),
        (np.zeros((2, 2), np.float64), r"a\.tif: not a readable image"),
    ],
)
def test_ambiguous_tiff_values_are_rejected(tmp_path, values, message):
    tifffile.imwrite(tmp_path / "a.tif", values)
    with pytest.raises(ImageError, match=message):
        load_image(tmp_path / "a.tif")
    record = {"id": 1, "file_name": "a.tif", "width": values.shape[1], "height": 2}
    data = {"images": [record], "categories": [], "annotations": []}
    (tmp_path / "data.json").write_text(json.dumps(data))
    with pytest.raises(ValueError, match=f"image 1: unreadable image: .*{message}"):
        CocoDetection(tmp_path / "data.json")


def test_floats_slightly_out_of_range_are_accepted(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", np.array([[-0.001, 1.0015]], np.float32))
    assert load_image(tmp_path / "a.tif")[0].tolist() == [[0, 255]]


@pytest.mark.parametrize("mode", ["La", "RGBa", "LAB", "HSV"])
def test_unsupported_modes_raise(mode):
    with pytest.raises(ImageError, match=f"image: mode {mode} is not supported; expected 1, L, "):
        load_image(Image.new(mode, (3, 2)))


def images_by_mode():
    """Returns images of every other mode with their expected pixels, by file name."""
    generator = np.random.default_rng(0)
    colours = generator.integers(0, 256, (6, 9, 3), dtype=np.uint8)
    expected = torch.from_numpy(colours).permute(2, 0, 1)
    rgb = Image.fromarray(colours)
    alpha = rgb.copy()
    alpha.putalpha(Image.fromarray(colours[:, :, 0]))
    grey = rgb.convert("L")
    grey_expected = torch.from_numpy(np.array(grey)).expand(3, -1, -1)
    grey_alpha = grey.copy()
    grey_alpha.putalpha(Image.fromarray(colours[:, :, 1]))
    bits = Image.fromarray(colours[:, :, 0] > 127)
    bits_expected = torch.from_numpy(np.array(bits)).expand(3, -1, -1) * 255
    palette = rgb.quantize(4)
    palette_expected = torch.from_numpy(
        np.array(palette.getpalette()).reshape(-1, 3)[np.array(palette)]
    )
    palette_expected = palette_expected.permute(2, 0, 1).to(torch.uint8)
    transparent = palette.copy()
    transparent.info["transparency"] = 1
    cmyk = rgb.convert("CMYK")
    return {
        "rgb.png": (rgb, expected),
        "rgba.png": (alpha, expected),
        "grey.png": (grey, grey_expected),
        "la.png": (grey_alpha, grey_expected),
        "bits.png": (bits, bits_expected),
        "bits.tif": (bits, bits_expected),
        "palette.png": (palette, palette_expected),
        "palette.gif": (palette, palette_expected),
        "transparent.png": (transparent, palette_expected),
        "ink.tif": (cmyk, expected),
    }


@pytest.mark.parametrize("name", images_by_mode())
def test_every_other_mode_is_converted_to_rgb(tmp_path, name):
    image, expected = images_by_mode()[name]
    image.save(tmp_path / name)
    assert torch.equal(load_image(tmp_path / name), expected)
    assert torch.equal(load_image(image), expected)


def test_cmyk_jpeg_is_converted_to_rgb(tmp_path):
    colours = Image.new("RGB", (16, 16), (200, 40, 90))
    colours.convert("CMYK").save(tmp_path / "a.jpg", quality=100)
    expected = torch.tensor([200, 40, 90], dtype=torch.uint8).view(3, 1, 1).expand(3, 16, 16)
    assert is_close(load_image(tmp_path / "a.jpg"), expected, 4)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_rotated_upright(tmp_path, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    for values in (scaled(255, np.uint8), scaled()):
        Image.fromarray(values).save(tmp_path / "a.png", exif=exif)
        grey = Image.fromarray(GREY[0].numpy().copy())
        grey.info["exif"] = exif.tobytes()
        upright = np.array(ImageOps.exif_transpose(grey))
        assert np.array_equal(load_image(tmp_path / "a.png")[0].numpy(), upright)


@pytest.mark.parametrize("order", ["=", "<", ">"])
def test_uint16_and_float_arrays_are_scaled_to_8_bits(order):
    values = scaled().astype(np.dtype(np.uint16).newbyteorder(order))
    assert torch.equal(load_image(values), GREY)
    assert torch.equal(load_image(np.stack([values] * 4, -1)), GREY)
    assert torch.equal(load_image(torch.from_numpy(scaled())[None]), GREY)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert is_close(load_image(torch.from_numpy(FRACTIONS).to(dtype)[None]), GREY, 1)
    with pytest.raises(
        ImageError, match=r"image: expected floating values in 0\.\.1, got 0 to 255"
    ):
        load_image(FRACTIONS * 255)
    for values in (
        scaled(9, np.int32),
        scaled(9, np.int64),
        scaled(1, bool),
        FRACTIONS.astype("c8"),
    ):
        with pytest.raises(ImageError, match="expected uint8, uint16 or floating values, got"):
            load_image(values)
    for dtype in (torch.float8_e5m2, torch.complex64, torch.int16, torch.bool):
        with pytest.raises(ImageError, match=f"floating values, got {dtype}"):
            load_image(torch.zeros(1, 2, 2, dtype=dtype))


@pytest.mark.parametrize("mode", ["RGB", "L", "I", "I;16", "F"])
@pytest.mark.parametrize("size", [(0, 5), (5, 0)])
def test_images_without_pixels_raise(mode, size):
    with pytest.raises(ImageError, match=f"^image: no pixels in {size[0]} x {size[1]}$"):
        load_image(Image.new(mode, size))


def test_damaged_or_closed_pillow_image_raises(tmp_path):
    Image.fromarray(scaled()).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    closed = Image.open(BytesIO(content))
    closed.close()
    for image in (closed, Image.open(BytesIO(content[:-25]))):
        with pytest.raises(ImageError, match=r"^image: not a readable image, mode I;16 \("):
            load_image(image)


def test_invalid_file_names_raise_image_error():
    with pytest.raises(ImageError, match=r"^(abc)+: not a readable image \(.*too long"):
        load_image("abc" * 1000)
    with pytest.raises(ImageError, match="no such image file"):
        load_image("a\0b")


@given(
    arrays(
        dtype=one_of(scalar_dtypes(), byte_string_dtypes(), unicode_string_dtypes()),
        shape=array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    ),
    booleans(),
)
def test_any_array_is_an_image_or_raises(array, transposed):
    try:
        image = load_image(array.T if transposed else array)
    except ImageError as error:
        assert str(error).startswith("image: ")
    else:
        assert image.dtype == torch.uint8 and image.is_contiguous()
        assert image.dim() == 3 and len(image) == 3 and image.numel() > 0


def test_tensors_of_other_layouts_raise():
    image = torch.zeros(3, 4, 5)
    for other, kind in (
        (image.to_sparse(), "torch.sparse_coo"),
        (image.byte().to("meta"), "meta"),
        (torch.nested.nested_tensor([image, image]), "nested"),
    ):
        with pytest.raises(ImageError, match=f"expected a dense tensor with memory, got {kind}"):
            load_image(other)


def test_image_with_requires_grad_loads_without_a_warning(recwarn):
    assert torch.equal(load_image(torch.from_numpy(FRACTIONS)[None].requires_grad_()), GREY)
    assert not recwarn.list


class Recorder(torch.nn.Module):
    """Stores the images of each call, and returns no detections."""

    def __init__(self):
        super().__init__()
        self.images = []

    def forward(self, images):
        self.images += images
        empty = {"boxes": torch.zeros(0, 4), "scores": torch.zeros(0)}
        return [empty | {"labels": torch.zeros(0, dtype=torch.int64)} for _ in images]


@pytest.mark.parametrize("size", [(40, 50), (130, 70)])
def test_tiled_image_is_converted_to_float_tile_by_tile(size, monkeypatch):
    image = torch.randint(256, (3, *size), dtype=torch.uint8)
    shapes, to_float = [], torch.Tensor.float
    monkeypatch.setattr(
        torch.Tensor, "float", lambda self: (shapes.append(self.shape), to_float(self))[1]
    )
    recorder = Recorder()
    Detector(recorder, ["x"], tile_size=64, tile_overlap=0.5, device="cpu").detect(image)
    assert max(shape.numel() for shape in shapes) <= 3 * 64 * 64
    first = recorder.images[0]
    assert first.shape == (3, 64, 64) and first.dtype == torch.float32
    expected = to_float(image)[:, :64, :64] / 255
    assert torch.equal(first[:, : size[0], : size[1]], expected)
    if size[0] < 64:
        filling = expected.mean(dim=(1, 2))
        assert torch.allclose(first[:, -1, -1], filling)


def test_bytes_load_like_the_file_they_come_from(tmp_path):
    Image.fromarray(scaled()).save(tmp_path / "a.png")
    assert torch.equal(
        load_image((tmp_path / "a.png").read_bytes()), load_image(tmp_path / "a.png")
    )
    with pytest.raises(
        ImageError, match=r"^image: not a readable image \(expected BMP, GIF, .*TGA"
    ):
        load_image(b"no image")


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_is_read(kind):
    image = Image.new("RGB", (16, 12), (0, 255, 255))
    content = contents.encoded(image, kind)
    assert load_image(content).shape == (3, 12, 16)


def test_max_pixels_and_formats_limit_the_input(tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(scaled()).save(path)
    for source in (path, path.read_bytes()):
        assert is_close(load_image(source, max_pixels=8, formats=["PNG"]), GREY)
        with pytest.raises(LargeImageError, match="more than the limit of 7 pixels"):
            load_image(source, max_pixels=7)
        with pytest.raises(ImageError, match=r"not a readable image \(expected JPEG, GIF\)"):
            load_image(source, formats=["JPEG", "GIF"])
