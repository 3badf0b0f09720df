# SPDX-License-Identifier: MIT
"""Taking turns on the detectors: one request at a time, and a few that wait."""

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
    """A bounded queue before one worker.

    A place is taken before the body is read, so that no more bodies are in memory than there are
    places.

    Args:
        limits: how many wait, and how much and how long they may send.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.taken = 0
        self._lock = anyio.Lock()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue.

        Raises:
            HTTPException: 503, all are taken.
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
        """Calls a function in a thread once it is this request's turn."""
        async with self._lock:
            return await to_thread.run_sync(function, *args)

    async def body(self, request: Request) -> bytes:
        """The whole body of a request.

        Raises:
            HTTPException: 413, it is longer than is taken: said at once if the request tells, and
                else as soon as it is seen; 408, it takes too long; 400, the client leaves.
        """
        most = self.limits.bytes
        refusal = HTTPException(413, f"the file has more than the {most:,} bytes that are taken")
        if int(request.headers.get("content-length", 0)) > most:  # h11 has checked that it is one
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
