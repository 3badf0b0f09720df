# SPDX-License-Identifier: MIT
"""Requests of the page and their answers."""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from torch import Tensor

from ..data.image import PHOTO_FORMATS, ImageError, LargeImageError, load_image
from ..engine.detect import Detector
from ..engine.formats import image_entry
from ..visualize import PERSON_SKELETON, class_colour
from .guard import LOOPBACK, Guard
from .limits import Limits
from .ops import OPS
from .queries import read_query
from .request_queue import RequestQueue

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
QUALITY = 92  # of the JPEG in which an image is returned


def create_app(
    detectors: Mapping[str, Detector],
    hosts: Sequence[str] = LOOPBACK,
    limits: Limits | None = None,
    samples: Mapping[str, bytes] | None = None,
) -> Guard:
    """Creates the ASGI application that serves the page and its requests.

    All files are read here; requests read none.

    - ``GET /`` and the files that it references: the page.
    - ``GET /api/about``: the models with their classes and class colours, the limits, the names of
      samples.
    - ``POST /api/detect?model=NAME``, with an image file as body: width, height and the image as
      the detector saw it; for each named model the time in seconds and the detections, as in
      `detops detect --json`, with their labels.
    - ``GET /api/samples/NAME``: a sample image.
    - ``GET /api/ops/OP``: see `detops.serve.ops`.

    Rejected requests are answered with ``{"error": message}``: 400 for an invalid query, 403 for a
    request from another page, 408 for an upload that is too slow, 413 for one that is too large,
    415 for a file that is not an image, 421 for another host, 503 if too many requests are waiting.

    Args:
        detectors: detectors by name.
        hosts: names and addresses that requests may use for the server, without a port.
        limits: see `Limits`; its defaults if None.
        samples: contents of image files, by name.

    Returns:
        An application for an ASGI server such as uvicorn.

    Example:
        >>> app = create_app({}, hosts=["photos.example"])
        >>> app.hosts
        ('photos.example',)
    """
    page = _Page(detectors, limits or Limits(), samples or {})
    routes = [
        Route("/api/about", page.about),
        Route("/api/detect", page.detect, methods=["POST"]),
        Route("/api/samples/{name}", page.sample),
        *(
            Route(f"/api/ops/{name}", partial(_answer_op, function, known))
            for name, (function, known) in OPS.items()
        ),
        *(Route(f"/{file.name}", _answer_file(file)) for file in sorted(STATIC.iterdir())),
        Route("/", _answer_file(STATIC / "index.html")),
    ]
    handlers: dict[Any, Any] = {HTTPException: _error_response, Exception: _internal_error_response}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), hosts)


class _Page:
    def __init__(
        self, detectors: Mapping[str, Detector], limits: Limits, samples: Mapping[str, bytes]
    ) -> None:
        self.detectors, self.limits, self.samples = detectors, limits, samples
        self.queue = RequestQueue(limits)

    async def about(self, request: Request) -> Response:
        models = [
            {
                "name": name,
                "classes": detector.names,
                "colours": [class_colour(k + 1) for k in range(len(detector.names))],
            }
            for name, detector in self.detectors.items()
        ]
        return JSONResponse(
            {
                "models": models,
                "max_bytes": self.limits.bytes,
                "score_floor": self.limits.score_floor,
                "person_skeleton": PERSON_SKELETON,
                "samples": list(self.samples),
            }
        )

    async def sample(self, request: Request) -> Response:
        content = self.samples.get(request.path_params["name"])
        if content is None:
            raise HTTPException(404, "no such sample")
        return Response(content, media_type="application/octet-stream")

    async def detect(self, request: Request) -> Response:
        names = request.query_params.getlist("model")
        if set(request.query_params) != {"model"} or len(set(names)) < len(names):
            raise HTTPException(400, "query: expected model, once for each model, and nothing else")
        for name in names:
            if name not in self.detectors:
                known = ", ".join(self.detectors)
                raise HTTPException(400, f"model: expected one of {known}, got {name!r}")
        with self.queue.slot():
            body = await self.queue.read_body(request)
            if not body:
                raise HTTPException(400, "expected an image file, got an empty body")
            answer = await self.queue.run(self._detect, body, names)
        return JSONResponse(answer)

    def _detect(self, body: bytes, names: Sequence[str]) -> dict[str, Any]:
        try:
            pixels = load_image(body, max_pixels=self.limits.pixels, formats=PHOTO_FORMATS)
        except LargeImageError as error:
            raise HTTPException(413, str(error)) from error
        except ImageError as error:
            raise HTTPException(415, str(error)) from error
        _, height, width = pixels.shape
        return {
            "width": width,
            "height": height,
            "picture": _data_url(pixels),
            "results": [self._found(name, pixels) for name in names],
        }

    def _found(self, name: str, pixels: Tensor) -> dict[str, Any]:
        began = time.perf_counter()
        found = self.detectors[name].detect(pixels, self.limits.score_floor)
        seconds = time.perf_counter() - began
        detections = image_entry("", pixels.shape, found)["detections"]
        return {"model": name, "seconds": seconds, "detections": detections}


def _data_url(pixels: Tensor) -> str:
    """Encodes the image as the detector saw it, since browsers decode files differently."""
    buffer = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(buffer, "JPEG", quality=QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"


async def _answer_op(function: Any, known: Any, request: Request) -> Response:
    # The ops take less than a millisecond here: too little for a thread.
    return JSONResponse(function(**read_query(request.query_params, **known)))


def _answer_file(file: Path) -> Any:
    content, media_type = file.read_bytes(), TYPES[file.suffix]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return answer


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _internal_error_response(request: Request, error: Exception) -> Response:
    # PyTorch raises RuntimeError if there is not enough memory.
    if isinstance(error, MemoryError | RuntimeError):
        text = str(error) or "not enough memory"
        return JSONResponse({"error": f"the detector failed: {text}"}, 500)
    return JSONResponse({"error": "the server failed; see its console"}, 500)
