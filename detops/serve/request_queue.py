# SPDX-License-Identifier: MIT
"""The queue of the detectors: one request at a time, and a few that wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
from anyio import to_thread
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from .limits import Limits

T = TypeVar("T")


class RequestQueue:
    """A bounded queue for one worker.

    A request gets a slot before its body is read, so there are at most as many bodies in memory as
    slots.

    Args:
        limits: number of waiting requests, and size and time of their uploads.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.used_slots = 0
        self._lock = anyio.Lock()

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Reserves a slot in the queue.

        Raises:
            HTTPException: 503 if none is free.
        """
        if self.used_slots > self.limits.waiting:
            message = f"busy: {self.limits.waiting} requests are waiting; try again in a moment"
            raise HTTPException(503, message, {"Retry-After": "1"})
        self.used_slots += 1
        try:
            yield
        finally:
            self.used_slots -= 1

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a thread when it is this request's turn."""
        async with self._lock:
            return await to_thread.run_sync(function, *args)

    async def read_body(self, request: Request) -> bytes:
        """Reads the whole body of a request.

        Raises:
            HTTPException: 413 if the body is too long, at once if the request states its length,
                otherwise when the limit is reached; 408 if it takes too long; 400 if the client
                disconnects.
        """
        max_bytes = self.limits.bytes
        rejection = HTTPException(413, f"the file exceeds the limit of {max_bytes:,} bytes")
        # h11 has validated the number.
        if int(request.headers.get("content-length", 0)) > max_bytes:
            raise rejection
        body = bytearray()
        try:
            with anyio.fail_after(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > max_bytes:
                        raise rejection
        except ClientDisconnect:
            raise HTTPException(400, "the upload was incomplete") from None
        except TimeoutError:
            raise HTTPException(
                408, f"the upload took longer than {self.limits.seconds:g} seconds"
            ) from None
        return bytes(body)
