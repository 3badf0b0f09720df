"""``make fuzz``: fuzzes ops or loaders in processes with limits of time and memory.

If a process crashes or hangs, its case is reported and another process continues. Each find is
printed with the command that repeats it, and stored in a file. The page accumulates the numbers of
cases.
"""

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from raw_calls import schema_ops

from .case import REFUSES, SANITIZED, from_json, to_json
from .check import Find, check
from .draw import draw
from .files import LOADERS, file_of
from .table import FILES, PLAIN, UNDER_SANITIZERS, publish
from .worker import PLACE

MEMORY = 6 << 30  # bytes of address space; the code of PyTorch uses most of them
HANGS = 600.0 if SANITIZED else 60.0  # seconds for one case
CASES = 20_000  # per process
NAMES = {"ops": schema_ops, "files": lambda: list(LOADERS)}
WORKER = [sys.executable, "-m", "fuzz.worker"]


def environment() -> dict[str, str]:
    """Returns the environment of the processes."""
    return os.environ | {
        "OMP_WAIT_POLICY": "passive",
        # The thread cache would reuse freed memory as it is, whereas malloc fills it.
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:{REFUSES}".strip(":"),
    }


class Run:
    """One run of the command."""

    def __init__(self, names: list[str], finds: Path, what: str = "ops") -> None:
        self.names, self.folder, self.what = names, finds, what
        self.counts: dict[str, list[int]] = {}
        self.finds: list[dict[str, Any]] = []
        self.lock, self.ends = threading.Lock(), False

    def found(self, find: dict[str, Any]) -> None:
        """Prints and stores a find."""
        self.finds.append(find)
        again = f"make fuzz SEED={find['seed']} CASES={find.get('cases', 1)}"
        if self.what == "files":
            again += " FILES=1"
        if self.names != NAMES[self.what]():
            again += f' OPS="{" ".join(self.names)}"'
        if SANITIZED:
            again += " SANITIZE=1"
        print(f"{find['op']}: {find['what']}\n    {again}", flush=True)
        if find["op"]:
            self.folder.mkdir(parents=True, exist_ok=True)
            name, seed = find["op"], find["seed"]
            if self.what == "files":
                (self.folder / f"{name}-{seed}").write_bytes(file_of(seed, name))
            else:
                told = to_json(draw(name, seed)) | {"what": find["what"]}
                (self.folder / f"{name}-{seed}.json").write_text(json.dumps(told) + "\n")

    def one_process(self, seed: int, until: float, most: int, place: Path) -> int:
        """Runs cases until the process ends; returns the next case number."""
        memory = "0" if SANITIZED else str(MEMORY)
        command = [*WORKER, self.what, place, seed, until, most, memory]
        process = subprocess.Popen(
            [*map(str, command), *self.names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,  # interrupts go only to this process
        )
        with open(place, "r+b") as file, mmap.mmap(file.fileno(), PLACE.size) as at:
            PLACE.pack_into(at, 0, seed, time.time())
            try:
                lines, errors = self._outputs(process, at)
            finally:
                process.kill()
            number, _ = PLACE.unpack_from(at)
        if self.ends:
            return number
        with self.lock:
            return self._take(process.returncode, number, lines, errors)

    def _take(self, status: int, number: int, lines: str, errors: str) -> int:
        """Processes the output of an ended process, reports a crash, and returns the next case."""
        after = number + 1
        for line in lines.splitlines():
            told = json.loads(line)
            if "counts" in told:
                after = told.get("next", after)
                for name, (cases, taken) in told["counts"].items():
                    before = self.counts.get(name, [0, 0])
                    self.counts[name] = [before[0] + cases, before[1] + taken]
            else:
                self.found(told)
        # The sanitizer's aligned `new` aborts the process where the real one throws.
        if status != 0 and "allocator is out of memory" not in errors:
            what = f"ended with {status}: {errors[:4000]}"
            name = self.names[number % len(self.names)]
            self.found({"op": name, "seed": number, "what": what})
        return after

    def _outputs(self, process: "subprocess.Popen[str]", at: mmap.mmap) -> tuple[str, str]:
        while True:
            try:
                return process.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                if self.ends or time.time() - PLACE.unpack_from(at)[1] > HANGS:
                    process.kill()

    def work(self, seed: int, minutes: float, cases: int) -> None:
        """Runs one process after the other."""
        until, last = time.time() + 60 * minutes, seed + cases
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "place"
            place.write_bytes(bytes(PLACE.size))
            while time.time() < until and seed < last and not self.ends:
                seed = self.one_process(seed, until, min(CASES, last - seed), place)

    def work_in(self, jobs: int, seed: int, minutes: float, cases: int) -> None:
        """Runs several such sequences in parallel, each on a part of the case numbers."""
        share = -(-cases // jobs)
        starts = range(seed, seed + cases, share)
        with ThreadPoolExecutor(jobs) as pool:
            shares = [
                pool.submit(self.work, start, minutes, min(share, seed + cases - start))
                for start in starts
            ]
            try:
                for each in shares:
                    each.result()
            finally:
                self.ends = True


def repeat(path: Path) -> None:
    """Checks the case in a file, in this process."""
    check(from_json(json.loads(path.read_text())))


def main() -> int:
    """Runs the command; returns 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument("--files", action="store_true", help="damaged files, not calls of ops")
    parser.add_argument("--ops", nargs="+", help="those, or those loaders of files")
    parser.add_argument("--jobs", type=int, default=1, help="processes beside each other")
    parser.add_argument("--case", type=Path, help="a file that an earlier run wrote: it alone")
    parser.add_argument("--finds", type=Path, default=Path("build/finds"))
    parser.add_argument(
        "--page",
        type=Path,
        help="the page that tells the numbers of cases: added, where a seed goes on from others",
    )
    options = parser.parse_args()
    if options.case:
        try:
            repeat(options.case)
        except Find as find:
            print(find)
            return 1
        return 0
    what = "files" if options.files else "ops"
    run = Run(options.ops or NAMES[what](), options.finds, what)
    began = time.time()
    run.work_in(options.jobs, options.seed, options.minutes, options.cases)
    cases = sum(of for of, _ in run.counts.values())
    took = time.time() - began
    print(f"{cases} cases in {took / 60:.1f} minutes, {len(run.finds)} finds")
    if options.page:
        kind = FILES if options.files else UNDER_SANITIZERS if SANITIZED else PLAIN
        publish(options.page, run.counts, kind, goes_on=options.seed > 0)
    return int(bool(run.finds))


if __name__ == "__main__":
    sys.exit(main())
