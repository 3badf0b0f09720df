# SPDX-License-Identifier: MIT
"""Exit codes and one-line error messages."""

from __future__ import annotations

import os
import re
import sys

USER_ERROR, INTERNAL_ERROR, PARTIAL_FAILURE, INTERRUPTED = 2, 1, 1, 130


class UsageError(ValueError):
    """A request that cannot be carried out as given."""


class PartialFailure(Exception):
    """A part of the work failed; the rest is done."""


def user_errors() -> tuple[type[Exception], ...]:
    """Returns the types of errors that the user can fix."""
    kinds: tuple[type[Exception], ...] = (ValueError, OSError, ImportError)
    # A module that was never imported cannot have raised its error.
    for module, name in (("config", "ConfigError"), ("engine.train", "TrainingError")):
        loaded = sys.modules.get(f"detops.{module}")
        if loaded is not None:
            kinds += (getattr(loaded, name),)
    return kinds


# Type and message of library errors that do not name their cause, with that cause.
_CAUSES: tuple[tuple[type[Exception], str, str], ...] = (
    (MemoryError, "", "there is not enough memory"),
    (ImportError, "failed to map segment|[Cc]annot allocate", "there is not enough memory to load"),
    (RuntimeError, "can't allocate memory|allocation failed", "there is not enough memory"),
    # Python raises these if it has no memory to compile a module, or to create an exception.
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


def error_cause(error: Exception) -> str | None:
    """Returns the cause of a library error, or None if its own message states it."""
    for kind, pattern, cause in _CAUSES:
        if isinstance(error, kind) and re.search(pattern, str(error)):
            return f"{cause}: {error}" if str(error) else cause
    return None


def fail(message: str, status: int) -> int:
    """Prints the error in one line on stderr and returns the status."""
    # Each process prints its error, since others may not have it. The main one omits its number.
    process = rank()
    prefix = "detops" if process == "0" else f"detops (process {process})"
    print(f"{prefix}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def rank() -> str:
    """Returns the rank of this process under torchrun."""
    return os.environ.get("RANK", "0")
