"""A folder that becomes read-only for a process, even for a process of root."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

from .process import FORK, Command

CLONE_NEWNS = 0x20000


def _create_private_mount(folder: Path) -> None:
    """Makes the folder a mount that only this process sees."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS) != 0:
        raise PermissionError("cannot create a mount namespace")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "--bind", folder, folder], check=True)


def _try_mount(folder: Path) -> None:
    try:
        _create_private_mount(folder)
    except (OSError, subprocess.CalledProcessError):
        os._exit(1)


@cache
def can_mount() -> bool:
    """Returns whether this process may mount."""
    process = FORK.Process(target=_try_mount, args=(Path("/tmp"),))
    process.start()
    process.join()
    return process.exitcode == 0


def make_read_only(folder: Path, run_command: Callable[..., None], command: Command) -> None:
    """Runs a command to some moment, then makes its folder read-only.

    A mount with a file open for writing cannot become read-only. Therefore another mount takes its
    place: open files stay writable, but no others can be opened for writing.
    """
    read_only = folder.with_suffix(".read-only")
    for directory in (folder, read_only):
        directory.mkdir(exist_ok=True)
    run_command(lambda: _create_private_mount(folder))
    nsenter = ["nsenter", "--target", str(command.pid), "--mount", "mount"]
    steps = (
        ["--bind", folder, read_only],
        ["-o", "remount,ro,bind", read_only],
        ["--move", read_only, folder],
    )
    for step in steps:
        # The command may have ended before.
        subprocess.run([*nsenter, *step], check=False, stderr=subprocess.DEVNULL)
