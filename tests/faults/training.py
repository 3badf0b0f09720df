"""`detops train`, in one process and in two.

What was disturbed goes on by ``--resume``, and must end with the weights of a run that nothing
happened to and a line of metrics for each step; where the process could tell, a line of its own
names the cause.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

import tiny_training as tiny
import torch

from detops.engine import load_checkpoint

from .disk import becomes_read_only
from .process import LATEST, Command, children, made_once, require, wait_for

STEPS, PERIOD = 16, 3
CHANGES = ("SOLVER.MAX_ITER", STEPS, "SOLVER.CHECKPOINT_PERIOD", PERIOD)
ROOT = Path(__file__).resolve().parents[2]


def lines_of(folder: Path) -> int:
    """How many steps have one."""
    file = folder / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


class Run(Command):
    """A folder of `detops train`, and the process that works in it."""

    def __init__(self, folder: Path, *changes: object) -> None:
        super().__init__(folder.with_suffix(".log"))
        self.folder, self.changes = folder, changes
        self.lost = 0  # lines of metrics that a fault took away

    def work(self) -> int:
        torch.set_num_threads(1)
        return tiny.train(self.folder, *CHANGES, *self.changes, "--resume")

    def done(self) -> int:
        return lines_of(self.folder)

    def reach(self, rng: random.Random, before: Callable[[], None] = lambda: None) -> None:
        """Begins, and goes on to a moment of chance in any part of the run but its end."""
        super().reach(rng, STEPS - 1, before)


def require_same(folder: Path, whole: Path, lost: int = 0) -> None:
    """That a run has ended as another did; some lines of metrics may have been taken from it."""
    ours, theirs = (load_checkpoint(each / "checkpoint.pt")["model"] for each in (folder, whole))
    require(all(torch.equal(ours[k], v) for k, v in theirs.items()), "other weights")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    known = steps == sorted(set(steps)) and set(steps) <= set(range(1, STEPS + 1))
    require(known and len(steps) >= STEPS - lost, f"lines of the steps {steps}, {lost} were lost")
    left = [p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".lock"))]
    require(not left, f"left behind: {left}")


@made_once
def _whole() -> Path:
    run = Run(Path(mkdtemp(prefix="faults-")) / "whole")
    run.finish()
    return run.folder


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


def worker_killed(run: Run, rng: random.Random) -> None:
    """``kill -9`` of a data worker."""
    run.changes = (*run.changes, "DATALOADER.NUM_WORKERS", 2)
    run.reach(rng)
    workers = children(run.pid) if run.alive() else []
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    status = run.end()
    if status:
        run.told("a data worker died")


def newest(folder: Path) -> Path | None:
    """The last checkpoint."""
    return max(folder.glob("checkpoint_*.pt"), default=None)


def begin_anew(run: Run) -> None:
    """A run whose only checkpoint is damaged says so, and begins anew without it."""
    if len(list(run.folder.glob("checkpoint_*.pt"))) != 1:
        return
    run.start()
    if run.end() != 0:
        run.told("none of its checkpoints can be used: .* (damaged|SHA-256)")
        for file in run.folder.glob("checkpoint*.pt"):
            file.unlink()


def bit_flipped(run: Run, rng: random.Random) -> None:
    """A bit of the newest checkpoint, after ``kill -9``."""
    killed(run, rng)
    if file := newest(run.folder):
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.unlink()  # checkpoint.pt may be another name of it
        file.write_bytes(content)
    begin_anew(run)


def torn(run: Run, rng: random.Random) -> None:
    """The newest checkpoint and the metrics, cut anywhere, after ``kill -9``."""
    killed(run, rng)
    for file in (newest(run.folder), run.folder / "metrics.jsonl"):
        if file and file.exists() and rng.random() < 0.7:
            before, content = lines_of(run.folder), file.read_bytes()
            file.unlink()
            file.write_bytes(content[: rng.randrange(len(content) + 1)])
            run.lost += max(0, before - lines_of(run.folder))
    begin_anew(run)


def disk_full(run: Run, rng: random.Random) -> None:
    """No byte more for checkpoints, from some moment on."""
    run.reach(rng)
    file = run.folder / "checkpoint.pt.tmp"
    run.folder.mkdir(exist_ok=True)
    try:
        os.symlink("/dev/full", file)
    except FileExistsError:  # one is being written
        pass
    status = run.end()
    if status:
        run.told("No space left on device")
    file.unlink(missing_ok=True)


def disk_read_only(run: Run, rng: random.Random) -> None:
    """Nothing in the folder changes any more, from some moment on."""
    becomes_read_only(run.folder, partial(run.reach, rng), run)
    status = run.end()
    if status:
        run.told("Read-only file system")


def file_too_large(run: Run, rng: random.Random) -> None:
    """A limit on the size of files, from some moment on: part of a write succeeds."""
    run.reach(rng)
    if run.limit_files(rng.randrange(200, 200_000)):
        run.told("File too large|cannot be written")


def out_of_memory(run: Run, rng: random.Random) -> None:
    """No byte more of address space, from some moment on."""
    run.reach(rng)
    run.limit_memory(rng.randrange(4 << 20))
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
    alive = run.alive()
    other.start()
    status, first = other.end(), run.end()
    require(first == 0, f"the first run ends with {first}")
    if alive and status:
        other.told("another run")


def _survived(fault: Callable[[Run, random.Random], None], rng: random.Random, at: Path) -> None:
    whole = _whole()
    run = Run(at / "run")
    fault(run, rng)
    run.changes = ()
    run.finish()
    require_same(run.folder, whole, run.lost)


def _two_processes(folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "--max-restarts", "1", "-m", "detops"]
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with open(folder.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(
            [*command, *tiny.arguments(folder, *map(str, CHANGES), "--resume")],
            env=os.environ | paths,
            stdout=log,
            stderr=log,
        )


@made_once
def _whole_of_two() -> Path:
    folder = Path(mkdtemp(prefix="faults-")) / "whole"
    require(_two_processes(folder).wait(LATEST) == 0, folder.with_suffix(".log"))
    return folder


def one_of_two_killed(rng: random.Random, at: Path) -> None:
    """``kill -9`` of one of two processes, which torchrun starts again, both."""
    whole = _whole_of_two()
    folder = at / "run"
    run = _two_processes(folder)
    until = rng.randrange(STEPS - 1)
    wait_for(lambda: lines_of(folder) >= until or run.poll() is not None)
    time.sleep(rng.random() * 0.1)
    workers = children(run.pid) if run.poll() is None else []
    if workers:
        os.kill(rng.choice(workers), signal.SIGKILL)
    status = run.wait(LATEST)
    require(status == 0, f"ends with {status}: {folder.with_suffix('.log').read_text()[-600:]}")
    require_same(folder, whole)


FAULTS = {
    name: partial(_survived, fault)
    for name, fault in {
        "kill -9": killed,
        "SIGTERM": terminated,
        "kill -9 of a data worker": worker_killed,
        "a bit of the newest checkpoint flips": bit_flipped,
        "checkpoint and metrics are torn": torn,
        "the disk is full": disk_full,
        "the disk becomes read-only": disk_read_only,
        "files may not grow": file_too_large,
        "no memory is left": out_of_memory,
        "the clock jumps": clock_jumps,
        "two runs in a folder": two_runs,
    }.items()
} | {"kill -9 of one of two processes": one_of_two_killed}
