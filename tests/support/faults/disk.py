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
    """A command reaches some moment, and from then on its folder is read-only.

    A mount does not become so while a file in it is open to be written. So another one takes its
    place: what is open stays, and nothing else can be opened.
    """
    other = folder.with_suffix(".read-only")
    for each in (folder, other):
        each.mkdir(exist_ok=True)
    reach(lambda: _mount_of_its_own(folder))
    enter = ["nsenter", "--target", str(command.pid), "--mount", "mount"]
    steps = ["--bind", folder, other], ["-o", "remount,ro,bind", other], ["--move", other, folder]
    for step in steps:
        # It may have ended before.
        subprocess.run([*enter, *step], check=False, stderr=subprocess.DEVNULL)
