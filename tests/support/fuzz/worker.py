"""One process of the fuzzer: runs cases until one crashes it, or until the time is up.

The current case is in a file that both processes map, so a crash reveals which case it was.
"""

import json
import mmap
import os
import resource
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

import torch

import detops
from detops.bench.memory import resident

from .check import Finding, check
from .draw import draw

CURRENT_CASE = struct.Struct("qd")  # the number of the case, and its start time
SLOW_SECONDS = 20.0  # tens of millions of results take some, a busy machine takes more
REPORT_INTERVAL = 500  # cases between two reports of counts
MAX_GROWTH = 300 << 20  # bytes that a process may grow by after every op has run


def checker(what: str) -> Callable[[int, str], bool]:
    """Returns the function that checks a case and returns whether the op or loader accepted it."""
    if what == "files":  # ops need no modules that read files
        from .files import check_file

        return check_file
    return lambda seed, op: check(draw(op, seed))


class Worker:
    """Runs the cases from one number on."""

    def __init__(
        self,
        current: mmap.mmap,
        names: list[str],
        sanitized: bool,
        what: str = "ops",
        reports: TextIO | None = None,
    ) -> None:
        self.current, self.names, self.sanitized = current, names, sanitized
        self.reports = reports
        self.check = checker(what)
        self.counts: dict[str, list[int]] = {}

    def report(self, message: dict[str, Any]) -> None:
        """Sends a line to the parent process."""
        print(json.dumps(message), file=self.reports, flush=True)

    def run_case(self, seed: int) -> None:
        """Runs one case."""
        began = time.perf_counter()
        CURRENT_CASE.pack_into(self.current, 0, seed, time.time())
        name = self.names[seed % len(self.names)]  # all names in turn
        try:
            accepted = self.check(seed, name)
        except Finding as finding:
            accepted = True
            self.report({"op": name, "seed": seed, "what": str(finding)})
        seconds = time.perf_counter() - began
        if seconds > SLOW_SECONDS and not self.sanitized:
            self.report({"op": name, "seed": seed, "what": f"took {seconds:.1f} s"})
        cases, accepted_cases = self.counts.get(name, (0, 0))
        self.counts[name] = [cases + 1, accepted_cases + accepted]

    def work(self, seed: int, until: float, count: int) -> None:
        """Runs at most ``count`` cases."""
        baseline = None
        for number in range(seed, seed + count):
            self.run_case(number)
            if number - seed == 5 * len(self.names):
                baseline = resident()
            if number % REPORT_INTERVAL == 0:  # a crashed process cannot report them
                self.report({"counts": self.counts})
                self.counts = {}
            if time.time() > until:
                break
        growth = resident() - baseline if baseline is not None and not self.sanitized else 0
        if growth > MAX_GROWTH:
            what = f"memory grew by {growth >> 20} MiB"
            self.report({"op": "", "seed": seed, "cases": number + 1 - seed, "what": what})
        self.report({"counts": self.counts, "next": number + 1})


def main() -> None:
    """``python -m fuzz.worker WHAT CURRENT SEED UNTIL COUNT MEMORY NAMES...``; see run.py."""
    what, path, seed, until, count, memory, *names = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(memory):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    torch.set_num_threads(1)
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with the reports
    assert not detops._C.emulated, "this build emulates CUDA kernels on one thread"
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), CURRENT_CASE.size) as current:
        worker = Worker(current, names, not int(memory), what, reports)
        worker.work(int(seed), float(until), int(count))


if __name__ == "__main__":
    main()
