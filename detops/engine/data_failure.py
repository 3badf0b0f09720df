# SPDX-License-Identifier: MIT
"""Handling and explanation of data loader errors during training."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from ..data.image import ImageError
from ..data.problems import AnnotationError

WORKER_TRACEBACK = "Original Traceback"  # PyTorch adds this to errors re-raised from a worker


def batches(loader: DataLoader, on_error: Callable[[Exception], Exception | None]) -> Iterator[Any]:
    """Yields the loader's batches.

    Args:
        loader: the loader to iterate over.
        on_error: called with an error of the loader, between two steps; returns the error to raise,
            or None to end.
    """
    iterator = iter(loader)
    with _without_sigchld_handler():
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                replacement = on_error(error)
                if replacement is None:
                    return
                raise replacement from error
            yield batch


@contextmanager
def _without_sigchld_handler() -> Iterator[None]:
    """Keeps PyTorch from raising an error in the middle of a step when a data worker dies.

    PyTorch's SIGCHLD handler raises wherever Python happens to be. The loader detects dead workers
    itself while it waits for them. At that point the completed steps can be saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    except Exception:
        # Do not restore the handler: it would raise again for the same worker while the loader
        # lives.
        raise
    except BaseException:
        _restore(handler)
        raise
    _restore(handler)


def _restore(handler: Any) -> None:
    # None means that the handler was not installed from Python.
    if handler is not None:
        signal.signal(signal.SIGCHLD, handler)


def data_failure(error: Exception, workers: int) -> str | None:
    """Describes a loader error in one line, or returns None if data and machine are not its cause.

    Args:
        error: error raised by the loader, possibly wrapping one from a worker.
        workers: DATALOADER.NUM_WORKERS.
    """
    # An EOFError has no message.
    text = str(error).strip() or type(error).__name__
    # Batches are fetched from the worker; once it has died, the connection fails.
    lost = isinstance(error, ConnectionError | EOFError | FileNotFoundError)
    if "DataLoader worker (pid" in text or (workers and lost and WORKER_TRACEBACK not in text):
        return (
            f"a data worker died ({_last_line(text)}): usually because the machine ran out of "
            f"memory; lower DATALOADER.NUM_WORKERS (now {workers}), or enlarge /dev/shm"
        )
    if "/torch_" in text and workers:
        return (
            f"a data worker ran out of shared memory ({_last_line(text)}): enlarge /dev/shm, "
            f"or lower DATALOADER.NUM_WORKERS (now {workers})"
        )
    if isinstance(error, AnnotationError | ImageError):
        return _last_line(text)
    return None


def _last_line(text: str) -> str:
    """Returns the message of an error without the traceback that a worker puts before it."""
    last = text.splitlines()[-1]
    if WORKER_TRACEBACK not in text:
        return last
    name, colon, message = last.partition(": ")
    return message if colon and name.replace(".", "").isidentifier() else last
