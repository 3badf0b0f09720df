"""``make faults``: `detops train` disturbed at moments of chance, each fault dozens of times.

A run in a process of its own is disturbed, goes on by ``--resume``, and must end with the weights
of one that nothing happened to and a line of metrics for each step; where the process could tell,
a line of its own names the cause.
"""

import argparse
import json
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import tiny_training as tiny
import torch

from detops.engine import load_checkpoint

STEPS, PERIOD = 16, 3
CHANGES = ("SOLVER.MAX_ITER", STEPS, "SOLVER.CHECKPOINT_PERIOD", PERIOD)
FORK = multiprocessing.get_context("fork")
LATEST = 600  # seconds after which a process hangs


class Fault(AssertionError):
    """Something was lost, or not told."""


def require(holds: object, what: str) -> None:
    """Raises where something does not hold."""
    if not holds:
        raise Fault(what)


class Run:
    """A folder of `detops train`, and the process that works in it."""

    def __init__(self, folder: Path, *changes: object) -> None:
        self.folder, self.changes = folder, changes
        self.log = folder.with_suffix(".log")
        self.process: multiprocessing.process.BaseProcess | None = None

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Begins, or goes on."""
        self.process = FORK.Process(target=self._work, args=(before,))
        self.process.start()

    def _work(self, before: Callable[[], None]) -> None:
        number = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(number, 1), os.dup2(number, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            before()
            status = tiny.train(self.folder, *CHANGES, *self.changes, "--resume")
        except SystemExit as left:
            status = left.code
        except BaseException:
            traceback.print_exc()
            status = 99
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(status)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def steps(self) -> int:
        """How many have a line."""
        file = self.folder / "metrics.jsonl"
        return file.read_bytes().count(b"\n") if file.exists() else 0

    def reach(self, rng: random.Random, before: Callable[[], None] = lambda: None) -> None:
        """Begins, and goes on to a moment of chance in any part of the run but its end."""
        self.start(before)
        until, began = rng.randrange(STEPS - 1), time.monotonic()
        while self.steps() < until and self.process.is_alive():
            require(time.monotonic() - began < LATEST, "hangs")
            time.sleep(0.001)
        time.sleep(rng.random() * 0.1)

    def end(self) -> int:
        """The status of the process."""
        self.process.join(LATEST)
        require(not self.process.is_alive(), "hangs")
        return self.process.exitcode

    def told(self, pattern: str) -> None:
        """Requires a line of the command's own."""
        lines = [x for x in self.log.read_text(errors="replace").splitlines() if "detops:" in x]
        require(any(re.search(pattern, x) for x in lines), f"not told: {pattern}: {lines[-3:]}")
        require("Traceback" not in self.log.read_text(errors="replace"), "a traceback")

    def finish(self, whole: "Run") -> None:
        """Goes on, to the end of a run that nothing happened to."""
        self.start()
        status = self.end()
        require(status == 0, f"--resume ends with {status}: {self.log.read_text()[-600:]}")
        ours, theirs = (load_checkpoint(r.folder / "checkpoint.pt")["model"] for r in (self, whole))
        require(all(torch.equal(ours[k], v) for k, v in theirs.items()), "other weights")
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        steps = [json.loads(line)["step"] for line in lines]
        require(steps == list(range(1, STEPS + 1)), f"lines of the steps {steps}")
        left = [p.name for p in self.folder.iterdir() if p.name.endswith((".tmp", ".lock"))]
        require(not left, f"left behind: {left}")


def killed(run: Run, rng: random.Random, before: Callable[[], None] = lambda: None) -> None:
    """``kill -9``."""
    run.reach(rng, before)
    os.kill(run.pid, signal.SIGKILL)
    run.end()


def terminated(run: Run, rng: random.Random) -> None:
    """SIGTERM, as before a machine is taken away."""
    run.reach(rng)
    os.kill(run.pid, signal.SIGTERM)
    status = run.end()
    if status:  # it was over before
        require(status == 143, f"ends with {status}")
        run.told("stopped by SIGTERM")


def children(pid: int) -> list[int]:
    """Processes of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def worker_killed(run: Run, rng: random.Random) -> None:
    """``kill -9`` of a data worker."""
    run.changes = (*run.changes, "DATALOADER.NUM_WORKERS", 2)
    run.reach(rng)
    workers = children(run.pid) if run.process.is_alive() else []
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    status = run.end()
    if status:
        run.told("a data worker died")


def newest(folder: Path) -> Path | None:
    """The last checkpoint."""
    return max(folder.glob("checkpoint_*.pt"), default=None)


def bit_flipped(run: Run, rng: random.Random) -> None:
    """A bit of the newest checkpoint, after ``kill -9``."""
    killed(run, rng)
    if file := newest(run.folder):
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.unlink()  # checkpoint.pt may be another name of it
        file.write_bytes(content)


def torn(run: Run, rng: random.Random) -> None:
    """The newest checkpoint and the metrics, cut anywhere, after ``kill -9``."""
    killed(run, rng)
    for file in (newest(run.folder), run.folder / "metrics.jsonl"):
        if file and file.exists() and rng.random() < 0.7:
            content = file.read_bytes()
            file.unlink()
            file.write_bytes(content[: rng.randrange(len(content) + 1)])


def disk_full(run: Run, rng: random.Random) -> None:
    """No byte more for checkpoints, from some moment on."""
    run.reach(rng)
    file = run.folder / "checkpoint.pt.tmp"
    try:
        os.symlink("/dev/full", file)
    except FileExistsError:  # one is being written
        pass
    status = run.end()
    if status:
        run.told("No space left on device")
    file.unlink(missing_ok=True)


def file_too_large(run: Run, rng: random.Random) -> None:
    """A limit on the size of files, from some moment on: part of a write succeeds."""
    run.reach(rng)
    if run.process.is_alive():
        limit = rng.randrange(200, 200_000)
        resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (limit, limit))
    status = run.end()
    if status:
        run.told("File too large|cannot be written")


def out_of_memory(run: Run, rng: random.Random) -> None:
    """No byte more of address space, from some moment on."""
    run.reach(rng)
    if run.process.is_alive():
        used = int(Path(f"/proc/{run.pid}/statm").read_text().split()[0]) * resource.getpagesize()
        limit = used + rng.randrange(4 << 20)
        resource.prlimit(run.pid, resource.RLIMIT_AS, (limit, limit))
    status = run.end()
    if status:
        run.told("memory")


def clock_jumps(run: Run, rng: random.Random) -> None:
    """The clock of the day jumps by up to ten years, to and fro; then ``kill -9``."""

    def jumps() -> None:
        now, own = time.time, random.Random(rng.random())
        time.time = lambda: now() + own.uniform(-3e8, 3e8)

    killed(run, rng, jumps)


def two_runs(run: Run, rng: random.Random) -> None:
    """A second run in the folder of the first."""
    run.reach(rng)
    other = Run(run.folder, *run.changes)
    other.log = run.folder.with_suffix(".other.log")
    alive = run.process.is_alive()
    other.start()
    status, first = other.end(), run.end()
    require(first == 0, f"the first run ends with {first}")
    if alive and status:
        other.told("another run")


FAULTS: dict[str, Callable[[Run, random.Random], None]] = {
    "kill -9": killed,
    "SIGTERM": terminated,
    "kill -9 of a data worker": worker_killed,
    "a bit of the newest checkpoint flips": bit_flipped,
    "checkpoint and metrics are torn": torn,
    "the disk is full": disk_full,
    "files may not grow": file_too_large,
    "no memory is left": out_of_memory,
    "the clock jumps": clock_jumps,
    "two runs in a folder": two_runs,
}


def once(kind: str, seed: int, whole: Run) -> str | None:
    """What was wrong with a fault of that number, or None."""
    rng = random.Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        try:
            FAULTS[kind](run, rng)
            run.changes = ()
            run.finish(whole)
        except Fault as fault:
            return f"{kind}, {seed}: {fault}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=24)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="faults whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        whole = Run(Path(folder) / "whole")
        whole.start()
        require(whole.end() == 0, whole.log.read_text())
        wrong = 0
        for kind in [k for k in FAULTS if arguments.only in k]:
            began = time.monotonic()
            with ThreadPoolExecutor(arguments.jobs) as pool:
                found = list(pool.map(partial(once, kind, whole=whole), range(arguments.times)))
            took = time.monotonic() - began
            told = [each for each in found if each]
            wrong += len(told)
            print(f"{kind}: {len(told)} of {len(found)} wrong, {took:.0f} s", flush=True)
            print(*(f"    {each}" for each in told), sep="\n", end="", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
