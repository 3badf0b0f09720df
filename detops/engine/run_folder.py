# SPDX-License-Identifier: MIT
"""The output folder of a training run: its lock and its last checkpoints."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .checkpoint import (
    Checkpoint,
    CheckpointError,
    DamagedCheckpointError,
    OutputError,
    is_sealed,
    load_checkpoint,
    save_checkpoint,
    sync_folder,
    writing,
)

KEPT_CHECKPOINTS = 3
CHECKPOINT_NAME = re.compile(r"checkpoint_(\d+)\.pt")


class RunFolder:
    """The output folder of a training run, with the last three checkpoints.

    The checkpoint after step 100 is `checkpoint_000100.pt`. `checkpoint.pt` is a link to the newest
    one. Version 0.1.0 wrote only a file of that name.

    Args:
        path: the folder; it need not exist.

    Example:
        >>> folder = RunFolder("runs/trees")
        >>> with folder.locked():  # no other run may write here
        ...     folder.newest.name
        'checkpoint.pt'
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.newest = self.path / "checkpoint.pt"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Creates the folder if it is missing, and locks it against other runs.

        A folder that it created and that is still empty at the end is removed.

        The operating system releases the lock when the process ends, however that happens.

        Raises:
            OutputError: the folder cannot be created or written to, or another run has locked it.
        """
        existed = self.path.exists()
        if existed and not self.path.is_dir():
            raise OutputError(f"{self.path}: expected a folder, got a file")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        file = self.path / "run.lock"
        with writing(file):
            descriptor = self._lock(file)
        try:
            yield
        finally:
            # Remove the file before releasing the lock; after that, it could be another run's file.
            file.unlink(missing_ok=True)
            os.close(descriptor)
            if not existed:
                with suppress(OSError):  # a folder with results is not empty
                    self.path.rmdir()

    def _lock(self, file: Path) -> int:
        while True:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                # Unlike a flock lock, this one is not inherited by data workers, which outlive a
                # killed run by some seconds.
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = os.path.samestat(os.fstat(descriptor), os.stat(file))
            except (BlockingIOError, PermissionError) as error:
                holder = os.read(descriptor, 200).decode(errors="replace").strip()
                os.close(descriptor)
                raise OutputError(
                    f"{self.path}: another run is writing here ({holder or 'just started'}; "
                    f"{file}): stop it first, or use another --output"
                ) from error
            except FileNotFoundError:
                current = False
            if current:
                os.ftruncate(descriptor, 0)
                os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                return descriptor
            # The previous holder has just exited and removed the file, so try again.
            os.close(descriptor)

    def numbered(self, step: int) -> Path:
        """Returns the path of a step's checkpoint."""
        return self.path / f"checkpoint_{step:06}.pt"

    def checkpoints(self) -> list[Path]:
        """Lists the existing checkpoints, newest first."""
        steps = self._steps()
        found = [steps[step] for step in sorted(steps, reverse=True)]
        # A file written by 0.1.0, or a link that was copied as a file.
        return [*found, self.newest] if _is_regular(self.newest) else found

    def _steps(self) -> dict[int, Path]:
        if not self.path.is_dir():
            return {}
        names = ((CHECKPOINT_NAME.fullmatch(path.name), path) for path in self.path.iterdir())
        return {int(name[1]): path for name, path in names if name is not None}

    def save(self, step: int, checkpoint: Checkpoint) -> None:
        """Writes the checkpoint of a step, then removes all but the last three.

        Checkpoints of later steps are removed too: training has gone back to before them.

        Raises:
            OutputError: the file cannot be written; the existing ones are intact.
        """
        # A fixed name, so that the next run overwrites what a killed run leaves behind.
        temporary = self.path / "checkpoint.pt.tmp"
        save_checkpoint(self.numbered(step), checkpoint, temporary)
        self._point_to_newest(step)
        steps = self._steps()
        kept = sorted((number for number in steps if number <= step), reverse=True)[
            :KEPT_CHECKPOINTS
        ]
        for number, path in steps.items():
            if number not in kept:
                path.unlink(missing_ok=True)

    def _point_to_newest(self, step: int) -> None:
        link = self.path / "checkpoint.pt.link"
        # Some file systems have no links; --resume does not need them.
        with suppress(OSError):
            link.unlink(missing_ok=True)
            link.symlink_to(self.numbered(step).name)
            os.replace(link, self.newest)
            sync_folder(self.path)

    def number(self, step: int) -> None:
        """Renames the checkpoint of 0.1.0, written at this step, like the numbered ones."""
        with writing(self.newest):
            os.replace(self.newest, self.numbered(step))
        self._point_to_newest(step)

    def newest_sound(
        self, check: Callable[[Checkpoint, Path], Any], tell: Callable[[str], None]
    ) -> tuple[Path, Checkpoint]:
        """Returns the path and the contents of the newest undamaged checkpoint.

        Args:
            check: called with a checkpoint and its path; raises DamagedCheckpointError for contents
                that training never writes.
            tell: called with one line for each skipped checkpoint, and for one without a seal.

        Raises:
            CheckpointError: there is no checkpoint, or all are damaged.
        """
        reasons = []
        for path in self.checkpoints():
            try:
                checkpoint = load_checkpoint(path)
                check(checkpoint, path)
            except DamagedCheckpointError as error:
                reasons.append(str(error))
                continue
            for reason in reasons:
                tell(f"{reason}: skipped")
            if not is_sealed(path):
                tell(
                    f"{path}: written by detops 0.1.0, without a digest: only the checksums of its "
                    "parts were verified"
                )
            return path, checkpoint
        if not reasons:
            raise CheckpointError(f"{self.newest}: no such checkpoint file")
        raise CheckpointError(
            f"{self.path}: none of its checkpoints can be used: {'; '.join(reasons)}"
        )

    def set_aside(self, step: int) -> list[Path]:
        """Renames the checkpoints from this step on, because their weights have diverged."""
        moved = []
        for number, path in sorted(self._steps().items()):
            if number >= step:
                aside = path.with_suffix(".diverged")
                with writing(aside):
                    os.replace(path, aside)
                moved.append(aside)
        remaining = self._steps()
        if moved and remaining:
            self._point_to_newest(max(remaining))
        elif moved:
            self.newest.unlink(missing_ok=True)
        return moved


def _is_regular(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
