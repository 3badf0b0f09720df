# SPDX-License-Identifier: MIT
"""How a command ends, and the one line on stderr that tells why."""

from __future__ import annotations

import os
import sys

USER_ERROR, INTERNAL_ERROR, SOME_FAILED, INTERRUPTED = 2, 1, 1, 130


class UsageError(ValueError):
    """A request that cannot be carried out as it stands."""


class SomeFailed(Exception):
    """A part of what was asked for could not be done; what could is done."""


def user_errors() -> tuple[type[Exception], ...]:
    """The kinds of error that the user can mend."""
    kinds: tuple[type[Exception], ...] = (ValueError, OSError, ImportError)
    # A module that was never imported cannot have raised its error.
    for module, name in (("config", "ConfigError"), ("engine.train", "TrainingError")):
        loaded = sys.modules.get(f"detops.{module}")
        if loaded is not None:
            kinds += (getattr(loaded, name),)
    return kinds


def fail(message: str, status: int) -> int:
    """Tells the error in one line on stderr; gives the status back."""
    # Every process tells its error, since that may be its alone, but the main one's looks plain.
    number = rank()
    who = "detops" if number == "0" else f"detops (process {number})"
    print(f"{who}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def rank() -> str:
    """The number of this process among those of torchrun."""
    return os.environ.get("RANK", "0")
