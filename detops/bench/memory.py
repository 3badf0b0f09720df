# SPDX-License-Identifier: MIT
"""Memory of this process, as Linux reports it."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from .. import _C

CLEAR_REFS = Path("/proc/self/clear_refs")


def resident() -> int:
    """Returns the bytes resident now."""
    return _status("VmRSS")


def peak_resident() -> int:
    """Returns the peak resident bytes since the start or the last `reset_peak`."""
    return _status("VmHWM")


def reset_peak() -> int:
    """Resets the peak to the bytes resident now, and returns them.

    All free memory is first returned to the system, so memory that is reused counts as growth.
    """
    _C.release_arena()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR_REFS.write_text("5")
    return resident()


def _status(field: str) -> int:
    found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(found.group(1)) if found else 0
