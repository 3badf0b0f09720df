"""Requests to `detops serve` as bytes, and the bytes of the response."""

import asyncio
import re
import socket
from functools import cache

import torch
import uvicorn
from torch import nn
from uvicorn.server import ServerState

from detops.engine.detect import Detector
from detops.serve import Limits, create_app
from detops.serve.command import server_config

LIMITS = Limits(bytes=200_000, pixels=10_000, waiting=1, seconds=0.05)
# Seconds before the request ends; the server may be waiting for the rest of it.
RESPONSE_TIMEOUT = 0.3


class Rejected(Exception):
    """The server rejected the request, or did not respond."""


class _Finds(nn.Module):
    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        boxes, one = torch.tensor([[1.0, 2, 9, 8]]), torch.ones(1)
        return [{"boxes": boxes, "labels": one.long(), "scores": one / 2} for _ in images]


@cache
def _config() -> uvicorn.Config:
    detector = Detector(_Finds(), ["cat"], device="cpu")
    detector.detect(torch.zeros(3, 8, 8, dtype=torch.uint8))  # runs the slow first call
    app = create_app({"a": detector, "b": detector}, limits=LIMITS, samples={"one": b"pixels"})
    return server_config(app, LIMITS)


async def _exchange(request: bytes) -> bytes:
    ours, theirs = socket.socketpair()
    loop, config = asyncio.get_running_loop(), _config()
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
    await loop.connect_accepted_socket(lambda: protocol, ours)
    reader, writer = await asyncio.open_connection(sock=theirs)
    try:
        writer.write(request)
        parts = asyncio.ensure_future(reader.read())
        done, _ = await asyncio.wait([parts], timeout=RESPONSE_TIMEOUT)
        if not done:
            writer.write_eof()
        return await asyncio.wait_for(parts, 10)
    finally:
        writer.close()


def respond(request: bytes) -> bytes:
    """Returns the server's response on a separate connection.

    Raises:
        Refused: the server rejected the request, or did not respond.
        RuntimeError: the server failed.
    """
    _config()
    found = asyncio.run(_exchange(request))
    status = re.match(rb"HTTP/1\.1 (\d{3}) ", found)
    if not status:
        raise Rejected(found[:100].decode(errors="replace"))
    if 500 <= int(status[1]) != 503:
        raise RuntimeError(found.decode(errors="replace"))
    if int(status[1]) != 200:
        raise Rejected(status[1].decode())
    return found
