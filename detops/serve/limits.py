# SPDX-License-Identifier: MIT
"""Limits on requests and connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits on requests and connections. A request that exceeds one is rejected.

    Args:
        bytes: size of an uploaded file.
        pixels: size of an uploaded image, according to its header.
        waiting: requests that may wait while the detector works on another one.
        seconds: time for an upload, and for the client to receive the answer.
        score_floor: detections with a lower score are not sent, whatever the page's threshold.
        head_seconds: time from the connection to the end of the request's head.
        connections: number of open connections; a browser opens six.

    The last two apply to `detops serve`. Other ASGI servers have their own.

    Raises:
        ValueError: a limit is not above 0, or the floor is not in 0..1.

    Example:
        >>> Limits(pixels=1_000_000).waiting
        4
    """

    bytes: int = 20_000_000
    pixels: int = 16_000_000
    waiting: int = 4
    seconds: float = 30.0
    score_floor: float = 0.05
    head_seconds: float = 5.0
    connections: int = 128

    def __post_init__(self) -> None:
        for name in ("bytes", "pixels", "waiting", "seconds", "head_seconds", "connections"):
            value = getattr(self, name)
            if not value > 0:
                raise ValueError(f"Limits: expected {name} above 0, got {value}")
        if not 0 <= self.score_floor <= 1:
            raise ValueError(f"Limits: expected score_floor in 0..1, got {self.score_floor}")
