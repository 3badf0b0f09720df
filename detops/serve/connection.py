# SPDX-License-Identifier: MIT
"""Limits on connections: closes those whose client sends no request or reads no answer."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from .limits import Limits


class Connections:
    """An ASGI application with limits on its connections.

    A connection is idle until the head of its request has arrived, and after its answer is
    complete. If there are too many connections, the one that has been idle the longest is closed,
    so clients that send nothing do not keep others out.

    Args:
        app: the application.
        limits: how long a connection may be idle, and how many there may be.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.open: dict[Any, Connection] = {}  # by the client's address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request and marks its connection as busy meanwhile."""
        connection = self.open.get(scope.get("client"))
        if connection is not None:
            connection.stop_timer()
        try:
            await self.app(scope, receive, send)
        finally:
            if connection is not None:
                connection.start_timer(self.limits.seconds)


class Connection(asyncio.Protocol):
    """A connection with limits around the protocol that reads requests and writes answers.

    Args:
        connections: all connections of the server.
        protocol: the class of the protocol, such as uvicorn's.
        options: arguments of the protocol.
    """

    def __init__(
        self, connections: Connections, protocol: type[asyncio.Protocol], **options: Any
    ) -> None:
        self.connections, self.protocol = connections, protocol(**options)
        self.is_busy, self.idle_since = False, 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.data_received = self.protocol.data_received  # type: ignore[method-assign]
        self.eof_received = self.protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = self.protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self.protocol.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timer for the request's head."""
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.client = transport, tuple(transport.get_extra_info("peername")[:2])
        self.protocol.connection_made(transport)
        limits, opened = self.connections.limits, self.connections.open
        opened[self.client] = self
        self.start_timer(limits.head_seconds)
        if len(opened) > limits.connections:
            idle = [each for each in opened.values() if not each.is_busy]
            min(idle, key=lambda each: each.idle_since)._drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Removes the connection."""
        self.connections.open.pop(self.client, None)
        self.stop_timer()
        self.protocol.connection_lost(exc)

    def stop_timer(self) -> None:
        """Stops the timer: the server is busy, or the client is gone."""
        self.is_busy = True
        if self._timer is not None:
            self._timer.cancel()

    def start_timer(self, seconds: float) -> None:
        """Starts the timer for the client to send a request or read the answer."""
        if self.client in self.connections.open:
            loop = asyncio.get_running_loop()
            self.is_busy, self.idle_since = False, loop.time()
            self._timer = loop.call_later(seconds, self._drop)

    def _drop(self) -> None:
        self.connections.open.pop(
            self.client, None
        )  # at once: more clients may connect before it closes
        self.transport.abort()
