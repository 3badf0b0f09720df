"""`detops detect`: a disturbed run resumes by ``--resume``, to the results of one run."""

import random
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

import torch

from detops import cli
from detops.cli.options import SHAPES_WEIGHTS
from detops.data.shapes import export
from detops.engine.journal import MERGED, PART_NAME, SETTINGS

from .disk import becomes_read_only
from .process import Command, cut, flipped, keep_no_memory, made_once, require

IMAGES = 24
RESULTS = "detections*.jsonl"
TABLES = {"--json": "found.json", "--coco": "coco.json", "--csv": "found.csv"}


@cache
def photographs() -> Path:
    """Returns a folder of images with objects to detect."""
    return export(Path(mkdtemp(prefix="faults-")), "test", length=IMAGES, size=96).parent


class Detect(Command):
    """A folder of `detops detect`, and the process that writes to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.with_suffix(".log"))
        self.folder, self.pictures = folder, photographs()  # before the fork

    def work(self) -> int:
        torch.set_num_threads(1)
        command = ["detect", self.pictures, "--weights", SHAPES_WEIGHTS, "--resume"]
        command += ["--output", self.folder]
        for option, name in TABLES.items():
            command += [option, self.folder / name]
        return cli.main([str(argument) for argument in command])

    def done(self) -> int:
        part = self.folder / PART_NAME.format(0)
        try:
            return part.read_bytes().count(b"\n")
        except FileNotFoundError:  # not started, or finished
            return IMAGES if (self.folder / MERGED).exists() else 0

    def reach(self, rng: random.Random, before: Callable[[], None] = lambda: None) -> None:
        """Starts the process and waits for a random moment before the last image."""
        super().reach(rng, IMAGES, before)

    def results(self) -> dict[str, str]:
        """Returns the written tables, without the name of the folder."""
        texts = {name: (self.folder / name).read_text() for name in (MERGED, *TABLES.values())}
        return {name: text.replace(str(self.folder), "") for name, text in texts.items()}

    def finish(self) -> None:
        """Resumes and runs to the end."""
        super().finish()
        left = list(self.folder.glob("*.tmp")) + list(self.folder.glob(PART_NAME.format("*")))
        require(not left, f"left behind: {left}")
        require(len(list(self.folder.glob("*.png"))) == IMAGES, "pictures are missing")


@made_once
def _whole() -> dict[str, str]:
    run = Detect(Path(mkdtemp(prefix="faults-")) / "whole")
    run.finish()
    results = run.results()
    require('"score"' in results["found.json"], "nothing was found")
    return results


def ended(how: int, run: Detect, rng: random.Random) -> bool:
    """Ends the run by a signal."""
    run.reach(rng)
    return run.signalled(how)


def disk_read_only(run: Detect, rng: random.Random) -> bool:
    """Makes the folder read-only, from a random moment on."""
    becomes_read_only(run.folder, partial(run.reach, rng), run)
    return run.fails("Read-only file system")


def file_too_large(run: Detect, rng: random.Random) -> bool:
    """Limits the size of files, from a random moment on: part of a write succeeds."""
    run.reach(rng)
    return run.limit_files(rng.randrange(200, 20_000))


def out_of_memory(run: Detect, rng: random.Random) -> bool:
    """Denies further address space, from a random moment on."""
    run.reach(rng, keep_no_memory)
    run.limit_memory(rng.randrange(1 << 18))
    return run.fails("memory")


def damaged(
    change: Callable[[bytes, random.Random], bytes], run: Detect, rng: random.Random
) -> bool:
    """Damages a file of the folder after ``kill -9``; the command must report it.

    A flipped bit may change a number of a detection, which no check can notice.
    """
    ended(signal.SIGKILL, run, rng)
    kinds = [sorted(run.folder.glob(name)) for name in (SETTINGS, RESULTS, "*.png")]
    kinds = [[file for file in kind if file.stat().st_size] for kind in kinds]
    if not any(kinds):
        return False
    file = rng.choice(rng.choice([kind for kind in kinds if kind]))
    file.write_bytes(change(file.read_bytes(), rng))
    run.start()
    if run.fails("damaged|another"):
        file.unlink()
    elif file.match(RESULTS) and change is flipped:
        (run.folder / MERGED).unlink()
    return True


def _survived(fault: Callable[[Detect, random.Random], bool], rng: random.Random, at: Path) -> bool:
    whole = _whole()
    run = Detect(at / "run")
    bit = fault(run, rng)
    run.finish()
    require(run.results() == whole, "other results")
    return bit


FAULTS = {
    name: partial(_survived, fault)
    for name, fault in {
        "kill -9": partial(ended, signal.SIGKILL),
        "SIGTERM": partial(ended, signal.SIGTERM),
        "a file is torn": partial(damaged, cut),
        "a bit of a file flips": partial(damaged, flipped),
        "the disk becomes read-only": disk_read_only,
        "files may not grow": file_too_large,
        "no memory is left": out_of_memory,
    }.items()
}
