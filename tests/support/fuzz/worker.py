"""One process of the fuzzer: cases one after the other, until one ends it or the time is up.

What it works on is in a file that both processes map, so that a crash tells which case it was.
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

from .check import Find, check
from .draw import draw

PLACE = struct.Struct("qd")  # the number of the case, and when it began
SLOW = 20.0  # seconds; tens of millions of results take some, and a crowded machine more
TOLD = 500  # cases, after which their numbers are told
GROWTH = 300 << 20  # bytes that a process may grow by after it has seen every op


def checks(what: str) -> Callable[[int, str], bool]:
    """Runs the case with a number, of an op or of a loader of files; whether it was taken."""
    if what == "files":  # ops need nothing of what reads files
        from .files import check_file

        return check_file
    return lambda seed, op: check(draw(op, seed))


class Worker:
    """The cases from one number on."""

    def __init__(
        self,
        place: mmap.mmap,
        names: list[str],
        sanitized: bool,
        what: str = "ops",
        answers: TextIO | None = None,
    ) -> None:
        self.place, self.names, self.sanitized = place, names, sanitized
        self.answers = answers
        self.check = checks(what)
        self.counts: dict[str, list[int]] = {}

    def tell(self, what: dict[str, Any]) -> None:
        """A line for the process that started this one."""
        print(json.dumps(what), file=self.answers, flush=True)

    def one(self, seed: int) -> None:
        """One case."""
        began = time.perf_counter()
        PLACE.pack_into(self.place, 0, seed, time.time())
        name = self.names[seed % len(self.names)]  # they come in turn
        try:
            accepted = self.check(seed, name)
        except Find as find:
            accepted = True
            self.tell({"op": name, "seed": seed, "what": str(find)})
        took = time.perf_counter() - began
        if took > SLOW and not self.sanitized:
            self.tell({"op": name, "seed": seed, "what": f"took {took:.1f} s"})
        cases, taken = self.counts.get(name, (0, 0))
        self.counts[name] = [cases + 1, taken + accepted]

    def work(self, seed: int, until: float, most: int) -> None:
        """At most ``most`` cases."""
        small = None
        for number in range(seed, seed + most):
            self.one(number)
            if number - seed == 5 * len(self.names):
                small = resident()
            if number % TOLD == 0:  # a process that dies tells no more
                self.tell({"counts": self.counts})
                self.counts = {}
            if time.time() > until:
                break
        grown = resident() - small if small is not None and not self.sanitized else 0
        if grown > GROWTH:
            what = f"memory grew by {grown >> 20} MiB"
            self.tell({"op": "", "seed": seed, "cases": number + 1 - seed, "what": what})
        self.tell({"counts": self.counts, "next": number + 1})


def main() -> None:
    """``python -m fuzz.worker WHAT PLACE SEED UNTIL MOST MEMORY NAMES...``; see run.py."""
    what, path, seed, until, most, memory, *names = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if int(memory):
        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    assert not detops._C.emulated, "CUDA's kernels run on the CPU's one thread: build without"
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PLACE.size) as place:
        worker = Worker(place, names, not int(memory), what, answers)
        worker.work(int(seed), float(until), int(most))


if __name__ == "__main__":
    main()
