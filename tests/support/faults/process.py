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
TIMEOUT = 600  # seconds after which a process counts as hung


class Fault(AssertionError):
    """Something was lost, or not reported."""


def require(condition: object, what: str) -> None:
    """Raises a Fault if a condition does not hold."""
    if not condition:
        raise Fault(what)


def wait_for(condition: Callable[[], object]) -> None:
    """Waits until a condition holds."""
    began = time.monotonic()
    while not condition():
        require(time.monotonic() - began < TIMEOUT, "timed out")
        time.sleep(0.001)


def children(pid: int) -> list[int]:
    """Returns the child processes of a process."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def cached_across_threads(make: Callable[[], T]) -> Callable[[], T]:
    """Caches the result of a function; the first of several threads computes it."""
    cached, lock = cache(make), threading.Lock()

    def get() -> T:
        with lock:
            return cached()

    return get


def flip_bit(content: bytes, rng: random.Random) -> bytes:
    """Flips a random bit."""
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(content: bytes, rng: random.Random) -> bytes:
    """Truncates the content at a random position."""
    return content[: rng.randrange(len(content))]


def disable_malloc_cache() -> None:
    """Makes malloc request each block of memory from the system, and return it."""
    LIBC.malloc.restype = ctypes.c_void_p
    resource.setrlimit(resource.RLIMIT_AS, (0, resource.RLIM_INFINITY))
    for bits in range(26, 9, -1):  # allocates all free blocks
        while LIBC.malloc(1 << bits):
            pass
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    LIBC.mallopt(M_MMAP_THRESHOLD, 4096)


def limit_memory(pid: int, headroom: int) -> None:
    """Limits a process to `headroom` bytes beyond its current address space."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + headroom
    resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


class Command:
    """A detops command that runs in a fork of this process and logs to a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.process: multiprocessing.process.BaseProcess | None = None

    def execute(self) -> int:
        """Runs the command and returns its status."""
        raise NotImplementedError

    def progress(self) -> int:
        """Returns how much of the work is done."""
        raise NotImplementedError

    def start(self, before: Callable[[], None] = lambda: None) -> None:
        """Starts or resumes the command."""
        self.process = FORK.Process(target=self._run, args=(before,))
        self.process.start()

    def _run(self, before: Callable[[], None]) -> None:
        log_fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log_fd, 1), os.dup2(log_fd, 2)
        sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            before()
            status = self.execute()
        except SystemExit as exit_request:
            status = exit_request.code
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

    def run_to_random_point(
        self, rng: random.Random, end: int, before: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the process and waits for a random moment before `end` is done."""
        self.start(before)
        until = rng.randrange(end)
        wait_for(lambda: self.progress() >= until or not self.alive())
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
        failed = self.wait() != 0
        if failed and self.log.stat().st_size < size:
            self.require_reported("File too large|cannot be written")
        return failed

    def limit_memory(self, headroom: int) -> None:
        """Limits the process to `more` bytes beyond its current address space."""
        if self.alive():
            limit_memory(self.pid, headroom)

    def send_signal(self, signal_number: int) -> bool:
        """Sends a signal; returns whether it ended the process."""
        os.kill(self.pid, signal_number)
        status = self.wait()
        require(status in (0, 143, -signal_number), f"exited with status {status}")
        if status == 143:
            self.require_reported("stopped by SIGTERM")
        return status != 0

    def wait(self) -> int:
        """Waits for the process and returns its status."""
        self.process.join(TIMEOUT)
        require(not self.alive(), "timed out")
        return self.process.exitcode

    def resume(self) -> None:
        """Resumes and runs to the end."""
        self.start()
        status = self.wait()
        require(status == 0, f"--resume exited with status {status}: {self.log_text()[-600:]}")

    def log_text(self) -> str:
        """Returns the log."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def fails_with(self, pattern: str) -> bool:
        """Returns whether the command fails, which it must report in its own line."""
        failed = self.wait() != 0
        if failed:
            self.require_reported(pattern)
        return failed

    def require_reported(self, pattern: str) -> None:
        """Requires a line of the command that matches the pattern."""
        lines = [line for line in self.log_text().splitlines() if "detops:" in line]
        require(any(re.search(pattern, x) for x in lines), f"not reported: {pattern}: {lines[-3:]}")
        require("Traceback" not in self.log_text(), "the log contains a traceback")
