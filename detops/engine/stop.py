# SPDX-License-Identifier: MIT
"""Ctrl-C and SIGTERM: stop at once, or after the current step."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(SystemExit):
    """A signal ended the work. The exit status is that of a process killed by the signal.

    Args:
        number: number of the signal.
        message: one line.
    """

    def __init__(self, number: int, message: str = "") -> None:
        super().__init__(128 + number)
        self.message = message or f"stopped by {signal.Signals(number).name}"


class StopSignals:
    """Handles SIGINT and SIGTERM in the block: raises Stopped, or records them in `deferred`.

    A second signal kills the process at once, as it would without a handler. Under torchrun,
    further signals are ignored, because torchrun also forwards those that the terminal has already
    sent to the processes. torchrun kills processes that have not exited after half a minute.

    Attributes:
        received: number of the first signal, or None.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._deferred = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        # Python allows only the main thread to install signal handlers.
        if threading.current_thread() is threading.main_thread():
            # Keep ignoring signals that are ignored already, as in a background job.
            handled = [s for s in SIGNALS if signal.getsignal(s) != signal.SIG_IGN]
            self._previous = {s: signal.signal(s, self._handle) for s in handled}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        """Returns whether a signal has arrived."""
        return self.received is not None

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Records signals in the block instead of raising."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            return
        self.received = number
        if "TORCHELASTIC_RUN_ID" not in os.environ:
            for each in self._previous:
                signal.signal(each, signal.SIG_DFL)
        if not self._deferred:
            raise Stopped(number)


def ignore_ctrl_c(worker: int = 0) -> None:
    """Ignores Ctrl-C in a data worker; a terminal sends it to all processes.

    The main process still needs its workers. The handling of SIGTERM stays unchanged, because
    PyTorch uses it to end workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
