"""Commands in processes of their own, and what is asked of them."""

import ctypes
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
FORK = multiprocessing.get_context("fork")
LIBC, M_MMAP_THRESHOLD, M_ARENA_MAX = ctypes.CDLL(None), -3, -8
LATEST = 600  # seconds after which a process hangs


class Fault(AssertionError):
    """Something was lost, or not told."""


def require(holds: object, what: str) -> None:
    """Raises where something does not hold."""
    if not holds:
        raise Fault(what)


def wait_for(holds: Callable[[], object]) -> None:
    """Until something holds."""
    began = time.monotonic()
    while not holds():
        require(time.monotonic() - began < LATEST, "hangs")
        time.sleep(0.001)


def children(pid: int) -> list[int]:
    """Processes of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def made_once(make: Callable[[], T]) -> Callable[[], T]:
    """What a function gives, made by the first of several threads that ask for it."""
    made, lock = cache(make), threading.Lock()

    def get() -> T:
        with lock:
            return made()

    return get


def flipped(content: bytes, rng: random.Random) -> bytes:
    """With another bit."""
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Without its end."""
    return content[: rng.randrange(len(content))]


def keep_no_memory() -> None:
    """From now on each block of memory is asked of the system, and given back to it."""
    LIBC.malloc.restype = ctypes.c_void_p
    resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
    for bits in range(26, 9, -1):  # the blocks that lie free
        while LIBC.malloc(1 << bits):
            pass
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    LIBC.mallopt(M_MMAP_THRESHOLD, 4096)


def limit_memory(pid: int, more: int) -> None:
    """A process gets so many bytes of address space more than it has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + more
    resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


class Command:
    """A command of detops, which works in a fork of this process and writes into a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: multiprocessing.process.BaseProcess | None = None

    def work(self) -> int:
        """The command; its status."""
        raise NotImplementedError

    def done(self) -> int:
        """How much of it there is."""
        raise NotImplementedError

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Begins, or goes on."""
        self.process = FORK.Process(target=self._run, args=(before,))
        self.process.start()

    def _run(self, before: Callable[[], None]) -> None:
        number = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(number, 1), os.dup2(number, 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            before()
            status = self.work()
        except SystemExit as left:
            status = left.code
        except BaseException:
            traceback.print_exc()
            status = 99
        sys.stderr.flush()
        os._exit(status)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def alive(self) -> bool:
        """Whether the process is at work."""
        return self.process.is_alive()

    def reach(
        self, rng: random.Random, end: int, before: Callable[[], None] = lambda: None
    ) -> None:
        """Begins, and goes on to a moment of chance before `end` is done."""
        self.start(before)
        until = rng.randrange(end)
        wait_for(lambda: self.done() >= until or not self.alive())
        time.sleep(rng.random() * 0.1)

    def limit(self, kind: int, value: int) -> None:
        """Limits what the process may have from now on, where it is still at work."""
        if self.alive():
            resource.prlimit(self.pid, kind, (value, resource.RLIM_INFINITY))

    def limit_files(self, size: int) -> bool:
        """No file may become larger; whether it ends by that, and tells of it if its log may."""
        self.limit(resource.RLIMIT_FSIZE, size)
        failed = self.end() != 0
        if failed and self.log.stat().st_size < size:
            self.told("File too large|cannot be written")
        return failed

    def limit_memory(self, more: int) -> None:
        """So many bytes of address space more than it has."""
        if self.alive():
            limit_memory(self.pid, more)

    def signalled(self, number: int) -> bool:
        """Ends it by a signal; whether it was not over before."""
        os.kill(self.pid, number)
        status = self.end()
        require(status in (0, 143, -number), f"ends with {status}")
        if status == 143:
            self.told("stopped by SIGTERM")
        return status != 0

    def end(self) -> int:
        """The status of the process."""
        self.process.join(LATEST)
        require(not self.alive(), "hangs")
        return self.process.exitcode

    def finish(self) -> None:
        """Goes on, to the end."""
        self.start()
        status = self.end()
        require(status == 0, f"--resume ends with {status}: {self.text()[-600:]}")

    def text(self) -> str:
        """All that it has written."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def fails(self, pattern: str) -> bool:
        """Whether it ends with an error, which must be told in a line of its own."""
        failed = self.end() != 0
        if failed:
            self.told(pattern)
        return failed

    def told(self, pattern: str) -> None:
        """Requires a line of the command's own."""
        lines = [line for line in self.text().splitlines() if "detops:" in line]
        require(any(re.search(pattern, x) for x in lines), f"not told: {pattern}: {lines[-3:]}")
        require("Traceback" not in self.text(), "a traceback")
