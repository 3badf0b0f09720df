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

from .check import Find, check
from .draw import draw

PLACE = struct.Struct("qd")  # the number of the case, and its start time
SLOW = 20.0  # seconds; tens of millions of results take some, a busy machine takes more
TOLD = 500  # cases between two reports of counts
GROWTH = 300 << 20  # bytes that a process may grow by after every op has run


def checks(what: str) -> Callable[[int, str], bool]:
    """Returns the function that checks a case and returns whether the op or loader accepted it."""
    if what == "files":  # ops need no modules that read files
        from .files import check_file

        return check_file
    return lambda seed, op: check(draw(op, seed))


class Worker:
    """Runs the cases from one number on."""

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
        """Sends a line to the parent process."""
        print(json.dumps(what), file=self.answers, flush=True)

    def one(self, seed: int) -> None:
        """Runs one case."""
        began = time.perf_counter()
        PLACE.pack_into(self.place, 0, seed, time.time())
        name = self.names[seed % len(self.names)]  # all names in turn
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
        """Runs at most ``most`` cases."""
        small = None
        for number in range(seed, seed + most):
            self.one(number)
            if number - seed == 5 * len(self.names):
                small = resident()
            if number % TOLD == 0:  # a crashed process cannot report them
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
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    assert not detops._C.emulated, "CUDA's kernels run on the CPU's one thread: build without"
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), PLACE.size) as place:
        worker = Worker(place, names, not int(memory), what, answers)
        worker.work(int(seed), float(until), int(most))


if __name__ == "__main__":
    main()
