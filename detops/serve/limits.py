# SPDX-License-Identifier: MIT
"""How much a request may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What is more than this is refused.

    Args:
        bytes: of an uploaded file.
        pixels: of an uploaded picture, by its header.
        waiting: requests that wait while another one is on the detector.
        seconds: that an upload may take, and an answer until the client has it.
        score_floor: detections below it are not sent, wherever the page's threshold stands.
        head_seconds: from the connection to the end of the request's head.
        connections: at a time; a browser opens six.

    The last two are those of `detops serve`; another ASGI server has its own.

    Raises:
        ValueError: one of them is not above 0, or the floor not in 0..1.

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
