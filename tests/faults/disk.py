"""A folder that a process cannot write to any more, though it belongs to root."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .process import FORK, Command

CLONE_NEWNS = 0x20000


def _mount_of_its_own(folder: Path) -> None:
    """Makes the folder a mount that this process alone sees."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise PermissionError("no mounts of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", folder, folder], check=True)


def _try(folder: Path) -> None:
    try:
        _mount_of_its_own(folder)
    except (OSError, subprocess.CalledProcessError):
        os._exit(1)


@cache
def can_mount() -> bool:
    """Whether this process may mount."""
    process = FORK.Process(target=_try, args=(Path("/tmp"),))
    process.start()
    process.join()
    return process.exitcode == 0


def becomes_read_only(folder: Path, reach: Callable[..., None], command: Command) -> None:
    """A command reaches some moment, and from then on its folder is read-only."""
    folder.mkdir(exist_ok=True)
    reach(lambda: _mount_of_its_own(folder))
    enter = ["nsenter", "--target", str(command.pid), "--mount"]
    again = ["mount", "-o", "remount,ro,bind", str(folder)]
    # It may have ended before.
    subprocess.run([*enter, *again], check=False, stderr=subprocess.DEVNULL)
