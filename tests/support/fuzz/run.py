"""``make fuzz``: fuzzes ops or loaders in processes with limits of time and memory.

If a process crashes or hangs, its case is reported and another process continues. Each finding is
printed with the command that repeats it, and stored in a file. The page accumulates the case
counts.
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

from .case import SANITIZED, SANITIZER_OPTIONS, from_json, to_json
from .check import Finding, check
from .draw import draw
from .files import LOADERS, damaged_file
from .table import FILES, PLAIN, UNDER_SANITIZERS, publish
from .worker import CURRENT_CASE

MEMORY = 6 << 30  # bytes of address space; the code of PyTorch uses most of them
TIMEOUT = 600.0 if SANITIZED else 60.0  # seconds for one case
CASES = 20_000  # per process
NAMES = {"ops": schema_ops, "files": lambda: list(LOADERS)}
WORKER = [sys.executable, "-m", "fuzz.worker"]


def environment() -> dict[str, str]:
    """Returns the environment of the processes."""
    return os.environ | {
        "OMP_WAIT_POLICY": "passive",
        # The thread cache would reuse freed memory as it is, whereas malloc fills it.
        "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0",
        "ASAN_OPTIONS": f"{os.environ.get('ASAN_OPTIONS', '')}:{SANITIZER_OPTIONS}".strip(":"),
    }


class Run:
    """One run of the command."""

    def __init__(self, names: list[str], folder: Path, what: str = "ops") -> None:
        self.names, self.folder, self.what = names, folder, what
        self.counts: dict[str, list[int]] = {}
        self.findings: list[dict[str, Any]] = []
        self.lock, self.stopping = threading.Lock(), False

    def record(self, finding: dict[str, Any]) -> None:
        """Prints and stores a finding."""
        self.findings.append(finding)
        command = f"make fuzz SEED={finding['seed']} CASES={finding.get('cases', 1)}"
        if self.what == "files":
            command += " FILES=1"
        if self.names != NAMES[self.what]():
            command += f' OPS="{" ".join(self.names)}"'
        if SANITIZED:
            command += " SANITIZE=1"
        print(f"{finding['op']}: {finding['what']}\n    {command}", flush=True)
        if finding["op"]:
            self.folder.mkdir(parents=True, exist_ok=True)
            name, seed = finding["op"], finding["seed"]
            if self.what == "files":
                (self.folder / f"{name}-{seed}").write_bytes(damaged_file(seed, name))
            else:
                stored = to_json(draw(name, seed)) | {"what": finding["what"]}
                (self.folder / f"{name}-{seed}.json").write_text(json.dumps(stored) + "\n")

    def one_process(self, seed: int, until: float, count: int, current: Path) -> int:
        """Runs cases until the process ends; returns the next case number."""
        memory = "0" if SANITIZED else str(MEMORY)
        command = [*WORKER, self.what, current, seed, until, count, memory]
        process = subprocess.Popen(
            [*map(str, command), *self.names],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,  # interrupts go only to this process
        )
        with open(current, "r+b") as file, mmap.mmap(file.fileno(), CURRENT_CASE.size) as mapped:
            CURRENT_CASE.pack_into(mapped, 0, seed, time.time())
            try:
                lines, errors = self._communicate(process, mapped)
            finally:
                process.kill()
            number, _ = CURRENT_CASE.unpack_from(mapped)
        if self.stopping:
            return number
        with self.lock:
            return self._process_output(process.returncode, number, lines, errors)

    def _process_output(self, status: int, number: int, lines: str, errors: str) -> int:
        """Processes the output of an ended process, reports a crash, and returns the next case."""
        next_case = number + 1
        for line in lines.splitlines():
            message = json.loads(line)
            if "counts" in message:
                next_case = message.get("next", next_case)
                for name, (cases, accepted) in message["counts"].items():
                    before = self.counts.get(name, [0, 0])
                    self.counts[name] = [before[0] + cases, before[1] + accepted]
            else:
                self.record(message)
        # The sanitizer's aligned `new` aborts the process where the real one throws.
        if status != 0 and "allocator is out of memory" not in errors:
            what = f"exited with status {status}: {errors[:4000]}"
            name = self.names[number % len(self.names)]
            self.record({"op": name, "seed": number, "what": what})
        return next_case

    def _communicate(self, process: "subprocess.Popen[str]", mapped: mmap.mmap) -> tuple[str, str]:
        while True:
            try:
                return process.communicate(timeout=2)
            except subprocess.TimeoutExpired:
                if self.stopping or time.time() - CURRENT_CASE.unpack_from(mapped)[1] > TIMEOUT:
                    process.kill()

    def work(self, seed: int, minutes: float, cases: int) -> None:
        """Runs one process after the other."""
        until, last = time.time() + 60 * minutes, seed + cases
        with tempfile.TemporaryDirectory() as folder:
            current = Path(folder) / "current"
            current.write_bytes(bytes(CURRENT_CASE.size))
            while time.time() < until and seed < last and not self.stopping:
                seed = self.one_process(seed, until, min(CASES, last - seed), current)

    def work_in_parallel(self, jobs: int, seed: int, minutes: float, cases: int) -> None:
        """Runs several such sequences in parallel, each on a part of the case numbers."""
        share_size = -(-cases // jobs)
        starts = range(seed, seed + cases, share_size)
        with ThreadPoolExecutor(jobs) as pool:
            shares = [
                pool.submit(self.work, start, minutes, min(share_size, seed + cases - start))
                for start in starts
            ]
            try:
                for share in shares:
                    share.result()
            finally:
                self.stopping = True


def repeat(path: Path) -> None:
    """Checks the case in a file, in this process."""
    check(from_json(json.loads(path.read_text())))


def main() -> int:
    """Runs the command; returns 1 if something was found."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e6)
    parser.add_argument("--cases", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--files", action="store_true", help="read damaged files instead of calling ops"
    )
    parser.add_argument("--ops", nargs="+", help="names of ops or, with --files, of loaders")
    parser.add_argument("--jobs", type=int, default=1, help="number of parallel processes")
    parser.add_argument("--case", type=Path, help="check only this case of an earlier run")
    parser.add_argument("--finds", type=Path, default=Path("build/finds"))
    parser.add_argument(
        "--page",
        type=Path,
        help="page whose case counts are replaced, or increased if --seed is positive",
    )
    options = parser.parse_args()
    if options.case:
        try:
            repeat(options.case)
        except Finding as finding:
            print(finding)
            return 1
        return 0
    what = "files" if options.files else "ops"
    run = Run(options.ops or NAMES[what](), options.finds, what)
    began = time.time()
    run.work_in_parallel(options.jobs, options.seed, options.minutes, options.cases)
    cases = sum(count for count, _ in run.counts.values())
    seconds = time.time() - began
    print(f"{cases} cases in {seconds / 60:.1f} minutes, {len(run.findings)} findings")
    if options.page:
        kind = FILES if options.files else UNDER_SANITIZERS if SANITIZED else PLAIN
        publish(options.page, run.counts, kind, accumulate=options.seed > 0)
    return int(bool(run.findings))


if __name__ == "__main__":
    sys.exit(main())
