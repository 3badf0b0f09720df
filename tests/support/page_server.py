"""The page of `detops serve` on a real socket, in a thread."""

import io
import json
import socket
import threading
import time
from contextlib import contextmanager
from http.client import HTTPConnection

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")

from detops.engine import Detector  # noqa: E402
from detops.serve import Limits, create_app  # noqa: E402
from detops.serve.command import listen, server_config  # noqa: E402

SMALL = Limits(bytes=200_000, pixels=10_000, waiting=1, seconds=0.5)
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 50, 3), np.uint8)
DETECT = "/api/detect?model=a"


def encoded(format="PNG", image=None, **options):
    """Encodes an image, PIXELS by default, as the bytes of a file."""
    buffer = io.BytesIO()
    (Image.fromarray(PIXELS) if image is None else image).save(buffer, format, **options)
    return buffer.getvalue()


class ThreeObjects(nn.Module):
    """Finds three objects with masks in every image, with scores 0.9, 0.4 and 0.01."""

    def forward(self, images):
        return [self.detections(image) for image in images]

    def detections(self, image):
        height, width = image.shape[1:]
        masks = torch.zeros(3, 1, height, width, dtype=torch.bool)
        masks[:, :, : height // 2, : width // 2] = True
        return {
            "boxes": torch.tensor([[0.0, 0, width / 2, height / 2]]).repeat(3, 1),
            "labels": torch.tensor([2, 1, 1]),
            "scores": torch.tensor([0.9, 0.4, 0.01]),
            "masks": masks,
        }


def make_detector(model=None):
    return Detector(model or ThreeObjects(), ["cat", "dog"], device="cpu")


@contextmanager
def serving(detectors, **options):
    """Runs a server with these detectors and yields its port."""
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        app, limits = create_app(detectors, **options), options.get("limits") or Limits()
        server = uvicorn.Server(server_config(app, limits))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield port
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module", name="port")
def server_with_limits():
    """Runs a server of two models and a sample with SMALL limits, and yields its port."""
    with serving(
        {"a": make_detector(), "b": make_detector()}, limits=SMALL, samples={"one": b"pixels"}
    ) as port:
        yield port


def send(port, method, path, body=None, headers=()):
    """Returns status, headers and content of the response; JSON is parsed."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        content = response.read()
        if response.getheader("content-type", "").startswith("application/json"):
            content = json.loads(content)
        return response.status, response.headers, content
    finally:
        connection.close()


def error_message(port, status, method, path, body=None, headers=()):
    """Returns the message of an error response, which must have this status."""
    actual, _, content = send(port, method, path, body, headers)
    assert actual == status, content
    assert list(content) == ["error"]
    return content["error"]


def send_raw(port, *chunks, pause=0.0):
    """Sends bytes over a connection and returns the response, up to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        for chunk in chunks:
            connection.sendall(chunk)
            time.sleep(pause)
        response = b""
        while part := connection.recv(65536):
            response += part
        return response
