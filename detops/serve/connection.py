# SPDX-License-Identifier: MIT
"""A connection to the page, which is closed when its client neither asks nor takes the answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from .limits import Limits


class Connection(H11Protocol):
    """uvicorn's, with limits on time and number.

    Idle is one whose request has not come yet, or whose answer is complete. One that stays idle is
    closed, and where there are too many, the one that has been idle for the longest: those that
    send nothing do not keep others out.

    Args:
        limits: how long a connection may be idle, and how many there are.
        options, named: uvicorn's.
    """

    def __init__(self, limits: Limits, *options: Any, **named: Any) -> None:
        super().__init__(*options, **named)
        self.limits = limits
        self._since, self._timer = 0.0, cast(asyncio.TimerHandle, None)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Gives the request's head its time."""
        super().connection_made(transport)
        self._wait(self.limits.head_seconds)
        if len(self.connections) > self.limits.connections:
            idle = [each for each in cast(set[Connection], self.connections) if each._is_idle()]
            min(idle, key=lambda each: each._since)._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Gives the client time to take the answer, which may be long."""
        self._timer.cancel()
        self._wait(self.limits.seconds)
        super().on_response_complete()

    def _wait(self, seconds: float) -> None:
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self._is_idle():
            self._drop()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _drop(self) -> None:
        self.connections.discard(self)  # at once: more may come before it is told of its end
        self.transport.abort()
