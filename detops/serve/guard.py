# SPDX-License-Identifier: MIT
"""Host and Origin checks of requests, and the headers of every answer."""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# A name or address, with IPv6 in brackets, and a port. Behind a tunnel it is not the server's port.
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    # Otherwise the server would read a rejected body to its end, which may never come.
    "Connection": "close",
}


class Guard:
    """Rejects requests for another host name or from another page.

    A foreign page whose name was changed to resolve to this machine (DNS rebinding) sends its own
    name as Host. A page that sends a cross-origin request sends its name as Origin.

    Args:
        app: the application that answers all other requests.
        hosts: names and addresses that requests may use for the server, without a port.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self.app = app
        self.hosts = tuple(dict.fromkeys(host.lower() for host in hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one ASGI request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        rejection = self._rejection(Headers(scope=scope))
        await (rejection or self.app)(scope, receive, send_guarded)

    def _rejection(self, headers: Headers) -> ASGIApp | None:
        host = headers.get("host", "").lower()
        known = HOST.fullmatch(host)
        if not known or known[1] not in self.hosts:
            expected = ", ".join(self.hosts)
            return _error_response(421, f"Host: expected one of {expected}, got {host!r}")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return _error_response(
                403, f"Origin: expected this page's, http://{host}, got {origin!r}"
            )
        return None


def _error_response(status: int, message: str) -> ASGIApp:
    return JSONResponse({"error": message}, status)
