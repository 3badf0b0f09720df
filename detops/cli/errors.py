# SPDX-License-Identifier: MIT
"""How a command ends, and the one line on stderr that tells why."""

from __future__ import annotations

import os
import re
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


# What libraries say of a cause that they do not name.
_CAUSES: tuple[tuple[type[Exception], str, str], ...] = (
    (MemoryError, "", "there is not enough memory"),
    (ImportError, "failed to map segment|[Cc]annot allocate", "there is not enough memory to load"),
    (RuntimeError, "can't allocate memory|allocation failed", "there is not enough memory"),
    # What Python says where it has no memory to compile a module, or for an error.
    (SyntaxError, "", "a module is damaged, or there is not enough memory to compile it"),
    (ValueError, r"^field '\w+' is required for \w+$", "there is not enough memory for a module"),
    (SystemError, "without .*exception", "there is not enough memory for an error"),
    (
        RuntimeError,
        "operator torchvision::nms does not exist",
        "torchvision's library cannot be loaded: there is not enough memory, or it belongs to "
        "another version of PyTorch",
    ),
)


def cause_of(error: Exception) -> str | None:
    """What was behind an error that others raised, or None where its own text tells it."""
    for kind, pattern, cause in _CAUSES:
        if isinstance(error, kind) and re.search(pattern, str(error)):
            return f"{cause}: {error}" if str(error) else cause
    return None


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
