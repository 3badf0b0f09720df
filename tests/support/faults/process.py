"""Commands in separate processes, and checks of their behaviour."""

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
    """Something was lost, or not reported."""


def require(holds: object, what: str) -> None:
    """Raises a Fault if a condition does not hold."""
    if not holds:
        raise Fault(what)


def wait_for(holds: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    began = time.monotonic()
    while not holds():
        require(time.monotonic() - began < LATEST, "hangs")
        time.sleep(0.001)


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def made_once(make: Callable[[], T]) -> Callable[[], T]:
    """Caches the result of a function; the first of several threads computes it."""
    made, lock = cache(make), threading.Lock()

    def get() -> T:
        with lock:
            return made()

    return get


def flipped(content: bytes, rng: random.Random) -> bytes:
    """Flips a random bit."""
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Truncates the content at a random position."""
    return content[: rng.randrange(len(content))]


def keep_no_memory() -> None:
    """Makes malloc request each block of memory from the system, and return it."""
    LIBC.malloc.restype = ctypes.c_void_p
    resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
    for bits in range(26, 9, -1):  # allocates all free blocks
        while LIBC.malloc(1 << bits):
            pass
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    LIBC.mallopt(M_MMAP_THRESHOLD, 4096)


def limit_memory(pid: int, more: int) -> None:
    """Limits a process to `more` bytes beyond its current address space."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + more
    resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


class Command:
    """A detops command that runs in a fork of this process and logs to a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: multiprocessing.process.BaseProcess | None = None

    def work(self) -> int:
        """Runs the command and returns its status."""
        raise NotImplementedError

    def done(self) -> int:
        """Returns how much of the work is done."""
        raise NotImplementedError

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Starts or resumes the command."""
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
        """Returns the process id."""
        return self.process.pid

    def alive(self) -> bool:
        """Returns whether the process is running."""
        return self.process.is_alive()

    def reach(
        self, rng: random.Random, end: int, before: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the process and waits for a random moment before `end` is done."""
        self.start(before)
        until = rng.randrange(end)
        wait_for(lambda: self.done() >= until or not self.alive())
        time.sleep(rng.random() * 0.1)

    def limit(self, kind: int, value: int) -> None:
        """Limits a resource of the process, if it is still running."""
        if self.alive():
            resource.prlimit(self.pid, kind, (value, resource.RLIM_INFINITY))

    def limit_files(self, size: int) -> bool:
        """Limits the size of files; returns whether the command fails.

        A failure must be reported unless the log has reached the limit.
        """
        self.limit(resource.RLIMIT_FSIZE, size)
        failed = self.end() != 0
        if failed and self.log.stat().st_size < size:
            self.told("File too large|cannot be written")
        return failed

    def limit_memory(self, more: int) -> None:
        """Limits the process to `more` bytes beyond its current address space."""
        if self.alive():
            limit_memory(self.pid, more)

    def signalled(self, number: int) -> bool:
        """Sends a signal; returns whether it ended the process."""
        os.kill(self.pid, number)
        status = self.end()
        require(status in (0, 143, -number), f"ends with {status}")
        if status == 143:
            self.told("stopped by SIGTERM")
        return status != 0

    def end(self) -> int:
        """Waits for the process and returns its status."""
        self.process.join(LATEST)
        require(not self.alive(), "hangs")
        return self.process.exitcode

    def finish(self) -> None:
        """Resumes and runs to the end."""
        self.start()
        status = self.end()
        require(status == 0, f"--resume ends with {status}: {self.text()[-600:]}")

    def text(self) -> str:
        """Returns the log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def fails(self, pattern: str) -> bool:
        """Returns whether the command fails, which it must report in its own line."""
        failed = self.end() != 0
        if failed:
            self.told(pattern)
        return failed

    def told(self, pattern: str) -> None:
        """Requires a line of the command that matches the pattern."""
        lines = [line for line in self.text().splitlines() if "detops:" in line]
        require(any(re.search(pattern, x) for x in lines), f"not told: {pattern}: {lines[-3:]}")
        require("Traceback" not in self.text(), "a traceback")
