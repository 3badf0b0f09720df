# SPDX-License-Identifier: MIT
"""The command `detops serve`: binds a port, loads the detectors and answers requests."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count
from pathlib import Path

import uvicorn
from PIL import Image
from rich.console import Console
from starlette.types import ASGIApp

from ..cli.options import TREE_CROWNS
from ..engine.checkpoint import list_some
from ..engine.detect import Detector
from ..engine.stop import StopSignals
from .app import create_app
from .connection import Connection, Connections
from .guard import LOOPBACK
from .limits import Limits

SECONDS_TO_FINISH = 5
ANY_ADDRESS = ("", "0.0.0.0", "::")


def serve(
    make_detectors: Callable[[], Mapping[str, Detector]],
    host: str,
    port: int,
    allowed: Sequence[str],
    limits: Limits,
    console: Console,
    messages: Console,
) -> None:
    """Answers requests until a signal arrives.

    Args:
        make_detectors: called after the port is bound; returns detectors by name.
        host: address to listen on.
        port: port to listen on; 0 selects a free one.
        allowed: further names that requests may use for the server.
        limits: see `Limits`.
        console: prints the page's address.
        messages: prints the loaded detectors and warnings.

    Raises:
        OSError: the server cannot listen on the address.
        Stopped: SIGINT or SIGTERM arrived; running requests get some seconds to finish.
    """
    with StopSignals(), listen(host, port) as listener:
        detectors = make_detectors()
        for name, detector in detectors.items():
            messages.print(f"{name}: detects {list_some(detector.names, ', ')}")
        own_hosts = [] if host in ANY_ADDRESS else [url_host(host)]
        app = create_app(detectors, [*LOOPBACK, *own_hosts, *allowed], limits, demo_samples())
        if host in ANY_ADDRESS or not is_loopback(listener):
            messages.print("warning: others in the network can reach this page without a password")
        shown = "localhost" if host in ANY_ADDRESS else url_host(host)
        console.print(f"http://{shown}:{listener.getsockname()[1]}/")
        uvicorn.Server(server_config(app, limits)).run([listener])


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """Returns the server's settings: HTTP only, and only errors on the console."""
    connections = Connections(app, limits)
    config = uvicorn.Config(
        connections,  # type: ignore[arg-type]
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,  # uvicorn's would close every handler of the process
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
    )
    config.load()
    protocol = config.http_protocol_class
    config.http_protocol_class = partial(Connection, connections, protocol)  # type: ignore[assignment]
    return config


def listen(host: str, port: int) -> socket.socket:
    """Opens a socket that listens on an address; port 0 is any free port.

    Raises:
        OSError: the address is in use, invalid, or not an address of this machine.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"{host}:{port}: cannot listen ({reason})") from error


def is_loopback(listener: socket.socket) -> bool:
    """Returns whether only this machine can reach the socket."""
    address = listener.getsockname()[0]
    return address == "::1" or address.startswith("127.")


def url_host(host: str) -> str:
    """Formats a host for an address, with IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Returns a unique short name per file: its stem, or its folder's name for `weights.pt`."""
    names: list[str] = []
    for path in paths:
        name = path.parent.name if path.stem == "weights" and path.parent.name else path.stem
        tries = chain([name], (f"{name} {number}" for number in count(2)))
        names.append(next(each for each in tries if each not in names))
    return names


def demo_samples() -> dict[str, bytes]:
    """Returns the images of the demo whose requirements are installed."""
    samples = {}
    photograph = TREE_CROWNS / "val.jpg"
    if photograph.is_file():
        samples["tree crowns"] = photograph.read_bytes()
    with suppress(ImportError):
        samples["shapes"] = shapes_sample()
    return samples


def shapes_sample() -> bytes:
    """Draws the image of `detops demo --masks` as PNG; raises ImportError without scikit-image."""
    from ..data import Shapes
    from ..demo_masks import SCENE, SCENE_INDEX, TEST_SPLIT

    scene = Shapes(length=SCENE_INDEX + 1, **SCENE, **TEST_SPLIT)
    buffer = io.BytesIO()
    Image.fromarray(scene.image(SCENE_INDEX).permute(1, 2, 0).numpy()).save(buffer, "PNG")
    return buffer.getvalue()
