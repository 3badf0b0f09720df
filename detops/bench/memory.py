# SPDX-License-Identifier: MIT
"""The memory of this process, as Linux counts it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from .. import _C

FORGET = Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes that there are now."""
    return _status("VmRSS")


def most_resident() -> int:
    """Bytes that there were at most, since the start or `forget_most`."""
    return _status("VmHWM")


def forget_most() -> int:
    """Bytes that there are now, which are the most for now.

    All that is free goes back to the system first: memory that is used again counts, too.
    """
    _C.release_arena()
    ctypes.CDLL(None).malloc_trim(0)
    FORGET.write_text("5")
    return resident()


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0
