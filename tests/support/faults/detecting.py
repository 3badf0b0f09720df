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

from .disk import make_read_only
from .process import (
    Command,
    cached_across_threads,
    disable_malloc_cache,
    flip_bit,
    require,
    truncate,
)

IMAGES = 24
RESULTS = "detections*.jsonl"
TABLES = {"--json": "found.json", "--coco": "coco.json", "--csv": "found.csv"}


@cache
def images() -> Path:
    """Returns a folder of images with objects to detect."""
    return export(Path(mkdtemp()), "test", length=IMAGES, size=96).parent


class Detect(Command):
    """A folder of `detops detect`, and the process that writes to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.with_suffix(".log"))
        self.folder, self.images = folder, images()  # before the fork

    def execute(self) -> int:
        torch.set_num_threads(1)
        command = ["detect", self.images, "--weights", SHAPES_WEIGHTS, "--resume"]
        command += ["--output", self.folder]
        for option, name in TABLES.items():
            command += [option, self.folder / name]
        return cli.main([str(argument) for argument in command])

    def progress(self) -> int:
        part = self.folder / PART_NAME.format(0)
        try:
            return part.read_bytes().count(b"\n")
        except FileNotFoundError:  # not started, or finished
            return IMAGES if (self.folder / MERGED).exists() else 0

    def run_to_random_point(
        self, rng: random.Random, before: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the process and waits for a random moment before the last image."""
        super().run_to_random_point(rng, IMAGES, before)

    def results(self) -> dict[str, str]:
        """Returns the written tables, without the name of the folder."""
        texts = {name: (self.folder / name).read_text() for name in (MERGED, *TABLES.values())}
        return {name: text.replace(str(self.folder), "") for name, text in texts.items()}

    def resume(self) -> None:
        """Resumes and runs to the end."""
        super().resume()
        leftovers = list(self.folder.glob("*.tmp")) + list(self.folder.glob(PART_NAME.format("*")))
        require(not leftovers, f"left behind: {leftovers}")
        require(len(list(self.folder.glob("*.png"))) == IMAGES, "output images are missing")


@cached_across_threads
def _undisturbed() -> dict[str, str]:
    run = Detect(Path(mkdtemp()) / "whole")
    run.resume()
    results = run.results()
    require('"score"' in results["found.json"], "no detections")
    return results


def signalled(signal_number: int, run: Detect, rng: random.Random) -> bool:
    """Ends the run by a signal."""
    run.run_to_random_point(rng)
    return run.send_signal(signal_number)


def disk_read_only(run: Detect, rng: random.Random) -> bool:
    """Makes the folder read-only, from a random moment on."""
    make_read_only(run.folder, partial(run.run_to_random_point, rng), run)
    return run.fails_with("Read-only file system")


def file_too_large(run: Detect, rng: random.Random) -> bool:
    """Limits the size of files, from a random moment on: part of a write succeeds."""
    run.run_to_random_point(rng)
    return run.limit_files(rng.randrange(200, 20_000))


def out_of_memory(run: Detect, rng: random.Random) -> bool:
    """Denies further address space, from a random moment on."""
    run.run_to_random_point(rng, disable_malloc_cache)
    run.limit_memory(rng.randrange(1 << 18))
    return run.fails_with("memory")


def damaged(
    change: Callable[[bytes, random.Random], bytes], run: Detect, rng: random.Random
) -> bool:
    """Damages a file of the folder after ``kill -9``; the command must report it.

    A flipped bit may change a number of a detection, which no check can notice.
    """
    signalled(signal.SIGKILL, run, rng)
    kinds = [sorted(run.folder.glob(name)) for name in (SETTINGS, RESULTS, "*.png")]
    kinds = [[file for file in kind if file.stat().st_size] for kind in kinds]
    if not any(kinds):
        return False
    file = rng.choice(rng.choice([kind for kind in kinds if kind]))
    file.write_bytes(change(file.read_bytes(), rng))
    run.start()
    if run.fails_with("damaged|another"):
        file.unlink()
    elif file.match(RESULTS) and change is flip_bit:
        (run.folder / MERGED).unlink()
    return True


def _survived(
    fault: Callable[[Detect, random.Random], bool], rng: random.Random, folder: Path
) -> bool:
    undisturbed = _undisturbed()
    run = Detect(folder / "run")
    took_effect = fault(run, rng)
    run.resume()
    require(run.results() == undisturbed, "different results")
    return took_effect


FAULTS = {
    name: partial(_survived, fault)
    for name, fault in {
        "kill -9": partial(signalled, signal.SIGKILL),
        "SIGTERM": partial(signalled, signal.SIGTERM),
        "a file is torn": partial(damaged, truncate),
        "a bit of a file flips": partial(damaged, flip_bit),
        "the disk becomes read-only": disk_read_only,
        "files may not grow": file_too_large,
        "no memory is left": out_of_memory,
    }.items()
}
