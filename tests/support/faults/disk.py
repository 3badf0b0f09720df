"""A folder that becomes read-only for a process, even for a process of root."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .process import FORK, Command

CLONE_NEWNS = 0x20000


def _mount_of_its_own(folder: Path) -> None:
    """Makes the folder a mount that only this process sees."""
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
    """Returns whether this process may mount."""
    process = FORK.Process(target=_try, args=(Path("/tmp"),))
    process.start()
    process.join()
    return process.exitcode == 0


def becomes_read_only(folder: Path, reach: Callable[..., None], command: Command) -> None:
    """Runs a command to some moment, then makes its folder read-only.

    A mount with a file open for writing cannot become read-only. Therefore another mount takes its
    place: open files stay writable, but no others can be opened for writing.
    """
    other = folder.with_suffix(".read-only")
    for each in (folder, other):
        each.mkdir(exist_ok=True)
    reach(lambda: _mount_of_its_own(folder))
    enter = ["nsenter", "--target", str(command.pid), "--mount", "mount"]
    steps = ["--bind", folder, other], ["-o", "remount,ro,bind", other], ["--move", other, folder]
    for step in steps:
        # The command may have ended before.
        subprocess.run([*enter, *step], check=False, stderr=subprocess.DEVNULL)
