# SPDX-License-Identifier: MIT
"""Ctrl-C and SIGTERM: at once, or after the step that is being made."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """A signal has ended the work; the status is what a process that it ended exits with.

    Args:
        number: of the signal.
        message: one line.
    """

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(128 + number)
        self.message = message or f"stopped by {signal.Signals(number).name}"


class StopSignals:
    """Takes SIGINT and SIGTERM while it is entered: raises Stopped, in `deferred` only notes them.

    A second signal ends the process at once, as if nothing took it. torchrun's processes are the
    exception, since torchrun hands them what the terminal has sent them already; it kills those
    that have not left after half a minute.

    Attributes:
        received: the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._deferred = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        # Python lets only the main thread take signals.
        if threading.current_thread() is threading.main_thread():
            # What is ignored, as in a background job, stays ignored.
            taken = [s for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN]
            self._before = {s: signal.signal(s, self._take) for s in taken}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """Whether a signal has come."""
        return self.received is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Here signals are noted only."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return
        self.received = number
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            for each in self._before:
                signal.signal(each, signal.SIG_DFL)
        if not self._deferred:
            raise Stopped(number)


def leave_ctrl_c_to_the_main_process(worker: int = 0) -> None:
    """For data workers: a terminal sends Ctrl-C to all processes, and they are still needed.

    SIGTERM stays as it is: PyTorch ends workers by it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
