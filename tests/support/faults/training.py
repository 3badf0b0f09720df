"""`detops train`, in one process and in two.

A disturbed run resumes by ``--resume``. It must end with the weights of an undisturbed run and a
line of metrics for each step. If the process could report the cause, its own line must name it.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, MutableSequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import tiny_training as tiny
import torch
from paths import environment

from detops.engine import load_checkpoint

from .disk import make_read_only
from .process import (
    FORK,
    TIMEOUT,
    Command,
    cached_across_threads,
    children,
    disable_malloc_cache,
    flip_bit,
    require,
    truncate,
    wait_for,
)

STEPS, PERIOD = 16, 3
YEARS = 3e8  # about ten years in seconds
CHANGES = ("SOLVER.MAX_ITER", STEPS, "SOLVER.CHECKPOINT_PERIOD", PERIOD)


def count_lines(folder: Path) -> int:
    """Returns the number of lines of metrics."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def read_steps(metrics: bytes) -> list[int]:
    """Returns the steps with a complete line."""
    found = []
    for line in metrics.split(b"\n"):
        with suppress(ValueError, TypeError, KeyError):
            found.append(json.loads(line)["step"])
    return found


class Run(Command):
    """A folder of `detops train`, and the process that writes to it."""

    def __init__(self, folder: Path, *changes: object) -> None:
        super().__init__(folder.with_suffix(".log"))
        self.folder, self.changes = folder, changes
        self.lost_lines = 0  # lines of metrics that a fault removed

    def execute(self) -> int:
        torch.set_num_threads(1)
        return tiny.train(self.folder, *CHANGES, *self.changes, "--resume")

    def progress(self) -> int:
        return count_lines(self.folder)

    def run_to_random_point(
        self, rng: random.Random, before: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the process and waits for a random moment in the run, except its end."""
        super().run_to_random_point(rng, STEPS - 1, before)


def require_same(folder: Path, undisturbed: Path, lost_lines: int = 0) -> None:
    """Requires that two runs ended alike; `lost_lines` lines of metrics may be missing."""
    ours, theirs = (
        load_checkpoint(path / "checkpoint.pt")["model"] for path in (folder, undisturbed)
    )
    require(all(torch.equal(ours[k], v) for k, v in theirs.items()), "different weights")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    are_valid = steps == sorted(set(steps)) and set(steps) <= set(range(1, STEPS + 1))
    require(
        are_valid and len(steps) >= STEPS - lost_lines,
        f"metrics have the steps {steps}, {lost_lines} may be missing",
    )
    leftovers = [p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".lock"))]
    require(not leftovers, f"left behind: {leftovers}")


@cached_across_threads
def _undisturbed() -> Path:
    run = Run(Path(mkdtemp()) / "whole")
    run.resume()
    return run.folder


def signalled(
    signal_number: int, run: Run, rng: random.Random, before: Callable[[], None] = lambda: None
) -> bool:
    """Ends the run by a signal; SIGTERM comes before a machine is taken away."""
    run.run_to_random_point(rng, before)
    return run.send_signal(signal_number)


def worker_killed(run: Run, rng: random.Random) -> bool:
    """Sends ``kill -9`` to a data worker."""
    run.changes = (*run.changes, "DATALOADER.NUM_WORKERS", 2)
    run.run_to_random_point(rng)
    workers = children(run.pid) if run.alive() else []
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    return run.fails_with("a data worker died")


def newest_checkpoint(folder: Path) -> Path | None:
    """Returns the last checkpoint."""
    return max(folder.glob("checkpoint_*.pt"), default=None)


def restart_if_damaged(run: Run) -> None:
    """Restarts a run without its only checkpoint if that is damaged, which it must report."""
    if len(list(run.folder.glob("checkpoint_*.pt"))) != 1:
        return
    run.start()
    if run.wait() != 0:
        run.require_reported("none of its checkpoints can be used: .* (damaged|SHA-256)")
        for file in run.folder.glob("checkpoint*.pt"):
            file.unlink()


def damaged(change: Callable[[bytes, random.Random], bytes], run: Run, rng: random.Random) -> bool:
    """Damages the newest checkpoint, the metrics or both, after ``kill -9``."""
    signalled(signal.SIGKILL, run, rng)
    metrics = run.folder / "metrics.jsonl"
    files = [file for file in (newest_checkpoint(run.folder), metrics) if file and file.exists()]
    files = [file for file in files if file.stat().st_size]
    chosen = rng.sample(files, rng.randint(1, len(files))) if files else []
    for file in chosen:
        content = file.read_bytes()
        changed = change(content, rng)
        if file == metrics:
            original_steps = read_steps(content)
            # No check can notice a step whose number became another.
            while (remaining := read_steps(changed)) != sorted({*remaining} & {*original_steps}):
                changed = change(content, rng)
            run.lost_lines = len(original_steps) - len(remaining)
        file.unlink()  # checkpoint.pt may be another name of the file
        file.write_bytes(changed)
    restart_if_damaged(run)
    return bool(chosen)


def disk_full(run: Run, rng: random.Random) -> bool:
    """Fills the disk for checkpoints, from a random moment on."""
    run.run_to_random_point(rng)
    file = run.folder / "checkpoint.pt.tmp"
    run.folder.mkdir(exist_ok=True)
    while run.alive():
        # A checkpoint that is being written occupies the name until it is complete.
        with suppress(FileExistsError):
            os.symlink("/dev/full", file)
        time.sleep(0.001)
    file.unlink(missing_ok=True)
    return run.fails_with("No space left on device")


def disk_read_only(run: Run, rng: random.Random) -> bool:
    """Makes the folder read-only, from a random moment on."""
    make_read_only(run.folder, partial(run.run_to_random_point, rng), run)
    return run.fails_with("Read-only file system")


def file_too_large(run: Run, rng: random.Random) -> bool:
    """Limits the size of files, from a random moment on: part of a write succeeds."""
    run.run_to_random_point(rng)
    return run.limit_files(rng.randrange(200, 200_000))


def out_of_memory(run: Run, rng: random.Random) -> bool:
    """Denies further address space, from a random moment on."""
    run.run_to_random_point(rng, disable_malloc_cache)
    run.limit_memory(rng.randrange(1 << 18))
    return run.fails_with("memory")


def clocks_jump(run: Run, rng: random.Random) -> bool:
    """Moves all clocks forward by years, the time of day also back, then sends ``kill -9``.

    Before the run resumes, its files get random times. Training measures by `perf_counter` and
    waits for data workers by `monotonic`.
    """
    run.changes = (*run.changes, "DATALOADER.NUM_WORKERS", 1)
    calls = FORK.RawArray("i", len(CLOCKS))

    def jump() -> None:
        for index, (name, back) in enumerate(CLOCKS.items()):
            setattr(time, name, jumping(getattr(time, name), back, calls, index))

    took_effect = signalled(signal.SIGKILL, run, rng, jump)
    has_started = count_lines(run.folder) > 0
    require(not has_started or all(calls), f"{list(CLOCKS)} were called {list(calls)} times")
    for file in run.folder.glob("*"):
        os.utime(file, (rng.uniform(0, 4e9),) * 2, follow_symlinks=False)
    return took_effect and has_started


CLOCKS = {"perf_counter": 0.0, "monotonic": 0.0, "time": -YEARS}  # how far they may jump back


def jumping(
    clock: Callable[[], float], back: float, calls: MutableSequence[int], index: int
) -> Callable[[], float]:
    """Returns a clock that sometimes jumps, and counts its calls."""
    rng, offset = random.Random(index), 0.0

    def now() -> float:
        nonlocal offset
        calls[index] += 1
        if rng.random() < 0.3:
            offset += rng.uniform(back, YEARS)
        return clock() + offset

    return now


def two_runs(run: Run, rng: random.Random) -> bool:
    """Starts a second run in the folder of the first."""
    run.run_to_random_point(rng)
    other = Run(run.folder, *run.changes)
    other.log = run.folder.with_suffix(".other.log")
    alive = run.alive()
    if alive:  # and keep it alive
        os.kill(run.pid, signal.SIGSTOP)
    other.start()
    status = other.wait()
    if alive:
        os.kill(run.pid, signal.SIGCONT)
    first_status = run.wait()
    require(first_status == 0, f"the first run exited with status {first_status}")
    if alive and status:
        other.require_reported("another run")
    return alive and status != 0


def _survived(
    fault: Callable[[Run, random.Random], bool], rng: random.Random, folder: Path
) -> bool:
    undisturbed = _undisturbed()
    run = Run(folder / "run")
    took_effect = fault(run, rng)
    run.changes = ()
    run.resume()
    require_same(run.folder, undisturbed, run.lost_lines)
    return took_effect


def _two_processes(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "detops"]
    with open(folder.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [*command, *tiny.arguments(folder, *map(str, CHANGES), "--resume")],
            env=environment(OMP_NUM_THREADS="1"),
            stdout=log,
            stderr=log,
        )


@cached_across_threads
def _undisturbed_pair() -> Path:
    folder = Path(mkdtemp()) / "whole"
    require(_two_processes(folder).wait(TIMEOUT) == 0, folder.with_suffix(".log"))
    return folder


def one_of_two_killed(rng: random.Random, folder: Path) -> bool:
    """Sends ``kill -9`` to one of two processes; torchrun restarts both."""
    undisturbed = _undisturbed_pair()
    folder = folder / "run"
    run = _two_processes(folder)
    until = rng.randrange(STEPS - 1)
    wait_for(lambda: count_lines(folder) >= until or run.poll() is not None)
    time.sleep(rng.random() * 0.1)
    workers = children(run.pid) if run.poll() is None else []
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    status = run.wait(TIMEOUT)
    require(
        status == 0, f"exited with status {status}: {folder.with_suffix('.log').read_text()[-600:]}"
    )
    require_same(folder, undisturbed)
    return bool(workers)


FAULTS = {
    name: partial(_survived, fault)
    for name, fault in {
        "kill -9": partial(signalled, signal.SIGKILL),
        "SIGTERM": partial(signalled, signal.SIGTERM),
        "kill -9 of a data worker": worker_killed,
        "bits of checkpoint and metrics flip": partial(damaged, flip_bit),
        "checkpoint and metrics are torn": partial(damaged, truncate),
        "the disk is full": disk_full,
        "the disk becomes read-only": disk_read_only,
        "files may not grow": file_too_large,
        "no memory is left": out_of_memory,
        "clocks and times of files jump": clocks_jump,
        "two runs in a folder": two_runs,
    }.items()
} | {"kill -9 of one of two processes": one_of_two_killed}
