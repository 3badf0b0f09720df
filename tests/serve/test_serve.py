# SPDX-License-Identifier: MIT
"""`detops serve`: responses to the page, its requests and uploaded images."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from page_server import (
    DETECT,
    PIXELS,
    SMALL,
    ThreeObjects,
    encoded,
    error_message,
    make_detector,
    send,
    server_with_limits,  # noqa: F401
    serving,
)
from PIL import Image

from detops.data import load_image
from detops.data.image import PHOTO_FORMATS
from detops.data.masks import decode_masks
from detops.engine import Detector
from detops.serve.app import STATIC
from detops.serve.guard import HEADERS
from detops.visualize import class_colour


def test_page_loads_only_files_of_its_own_server(port):
    status, headers, page = send(port, "GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    text = page.decode()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=", text)
    linked = set(re.findall(r'(?:href|src)="([^"#]+)"', text))
    for file in STATIC.iterdir():
        content = file.read_text()
        linked |= {m.removeprefix("./") for m in re.findall(r'from "([^"]+)"', content)}
        external = set(re.findall(r"\bhttps?://[^\"'\s]+", content)) - {
            "http://www.w3.org/2000/svg"
        }
        assert not external, file
    assert linked | {"index.html"} == {file.name for file in STATIC.iterdir()}
    for name in linked:
        status, headers, content = send(port, "GET", f"/{name}")
        assert status == 200 and content == (STATIC / name).read_bytes()
        kind = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
        assert headers["Content-Type"].startswith(kind[name.rpartition(".")[2]])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/api/about", 200),
        ("GET", "/api/samples/one", 200),
        ("GET", "/api/ops/nms", 200),
        ("GET", "/missing", 404),
        ("PUT", "/api/detect", 405),
        ("POST", DETECT, 400),
    ],
)
def test_every_response_has_the_security_headers(port, method, path, status):
    found, headers, _ = send(port, method, path)
    assert found == status
    for name, value in HEADERS.items():
        assert headers.get_all(name) == [value]
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and headers["X-Content-Type-Options"] == "nosniff"


def test_about_returns_models_limits_and_samples(port):
    _, _, about = send(port, "GET", "/api/about")
    colours = [[255, 193, 7], [255, 87, 100]]
    model = {"classes": ["cat", "dog"], "colours": colours}
    assert about["models"] == [{"name": name} | model for name in "ab"]
    assert about["max_bytes"] == SMALL.bytes
    assert about["score_floor"] == 0.05 and about["samples"] == ["one"]
    assert send(port, "GET", "/api/samples/one")[2] == b"pixels"


def test_class_colours_match_drawn_images_for_many_classes():
    detector = Detector(ThreeObjects(), [str(k) for k in range(20)], device="cpu")
    with serving({"a": detector}) as port:
        (model,) = send(port, "GET", "/api/about")[2]["models"]
    assert model["colours"] == [list(class_colour(label)) for label in range(1, 21)]
    assert len(set(map(tuple, model["colours"]))) == 20


def test_detect_returns_boxes_labels_scores_and_masks(port):
    status, _, response = send(port, "POST", DETECT, encoded())
    assert status == 200 and (response["width"], response["height"]) == (50, 30)
    (result,) = response["results"]
    assert result["model"] == "a" and result["seconds"] > 0
    # The third score is below the floor.
    found = result["detections"]
    assert [d["score"] for d in found] == pytest.approx([0.9, 0.4])
    assert [(d["label"], d["name"]) for d in found] == [(2, "dog"), (1, "cat")]
    assert found[0]["box"] == [0, 0, 25, 15]
    expected = ThreeObjects().detections(torch.zeros(3, 30, 50))["masks"][:2, 0]
    assert torch.equal(decode_masks([d["mask"] for d in found], 30, 50).bool(), expected)
    image = base64.b64decode(response["picture"].removeprefix("data:image/jpeg;base64,"))
    assert Image.open(io.BytesIO(image)).size == (50, 30)


def test_two_models_detect_in_one_image(port):
    _, _, response = send(port, "POST", "/api/detect?model=b&model=a", encoded())
    assert [result["model"] for result in response["results"]] == ["b", "a"]


class RecordsImage(ThreeObjects):
    def detections(self, image):
        self.image = image
        return super().detections(image)


@pytest.mark.parametrize("format", PHOTO_FORMATS)
def test_uploads_of_every_format_are_read(format):
    model = RecordsImage()
    body = encoded(format)
    with serving({"a": make_detector(model)}, limits=SMALL) as port:
        status, _, _ = send(port, "POST", DETECT, body)
    assert status == 200
    assert torch.equal((model.image * 255).round().byte(), load_image(body))


@pytest.mark.parametrize(
    ("image", "format"),
    [
        (Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "PNG"),
        (Image.fromarray(PIXELS).convert("CMYK"), "JPEG"),
        (Image.fromarray(PIXELS).convert("P"), "GIF"),
        (Image.fromarray(PIXELS).convert("1"), "BMP"),
        (Image.fromarray(PIXELS).convert("RGBA"), "WEBP"),
    ],
)
def test_uploads_of_other_modes_are_accepted(port, image, format):
    assert send(port, "POST", DETECT, encoded(format, image))[0] == 200


def test_uploads_are_rotated_upright(port):
    rotated = Image.Exif()
    rotated[0x0112] = 6
    status, _, response = send(port, "POST", DETECT, encoded("JPEG", exif=rotated))
    assert status == 200 and (response["width"], response["height"]) == (30, 50)


@pytest.mark.parametrize(
    "body",
    [
        b"hello",
        b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
        b"<!doctype html><html></html>",
        b"%PDF-1.7",
        b"\0" * 1000,
        encoded("PPM"),
        encoded("ICO"),
        encoded("TGA"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    ],
)
def test_uploads_that_are_not_images_are_rejected(port, body):
    message = error_message(port, 415, "POST", DETECT, body)
    assert message == f"image: not a readable image (expected {', '.join(PHOTO_FORMATS)})"


def test_empty_body_is_rejected(port):
    assert "empty" in error_message(port, 400, "POST", DETECT, b"")


@pytest.mark.parametrize("format", PHOTO_FORMATS)
@pytest.mark.parametrize("fraction", [0.02, 0.1, 0.5, 0.9])
def test_truncated_images_are_rejected(port, format, fraction):
    body = encoded(format)
    status, _, content = send(port, "POST", DETECT, body[: int(fraction * len(body))])
    # Some cuts remove no pixels, only data that follows them in the file.
    assert status == 415 and content["error"].startswith("image: "), content


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    format=st.sampled_from(PHOTO_FORMATS),
    changes=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=8),
)
def test_damaged_images_are_read_or_rejected(port, format, changes):
    body = bytearray(encoded(format))
    for position, value in changes:
        body[int(position * len(body))] = value
    assert send(port, "POST", DETECT, bytes(body))[0] in (200, 413, 415)
