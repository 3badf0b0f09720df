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


class Turns:
    """A bounded queue for one worker.

    A request gets a place before its body is read, so there are at most as many bodies in memory as
    places.

    Args:
        limits: number of waiting requests, and size and time of their uploads.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.taken = 0
        self._lock = anyio.Lock()

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserves a place in the queue.

        Raises:
            HTTPException: 503 if none is free.
        """
        if self.taken > self.limits.waiting:
            busy = f"busy: {self.taken} requests are waiting already; try again in a moment"
            raise HTTPException(503, busy, {"Retry-After": "1"})
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Calls a function in a thread when it is this request's turn."""
        async with self._lock:
            return await to_thread.run_sync(function, *args)

    async def body(self, request: Request) -> bytes:
        """Reads the whole body of a request.

        Raises:
            HTTPException: 413 if the body is too long, at once if the request states its length,
                otherwise when the limit is reached; 408 if it takes too long; 400 if the client
                disconnects.
        """
        most = self.limits.bytes
        refusal = HTTPException(413, f"the file has more than the {most:,} bytes that are taken")
        if int(request.headers.get("content-length", 0)) > most:  # h11 has validated the number
            raise refusal
        body = bytearray()
        try:
            with anyio.fail_after(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise refusal
        except ClientDisconnect:
            raise HTTPException(400, "the file did not arrive whole") from None
        except TimeoutError:
            raise HTTPException(
                408, f"the file did not arrive within {self.limits.seconds:g} seconds"
            ) from None
        return bytes(body)
