# SPDX-License-Identifier: MIT
"""Batches whose failures come between two steps, and what they mean."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from ..data.image import ImageError
from ..data.problems import AnnotationError

WRAPPED = "Original Traceback"  # PyTorch writes it into the errors that come from a worker


def batches(loader: DataLoader, failed: Callable[[Exception], Exception | None]) -> Iterator[Any]:
    """The loader's batches.

    Args:
        loader: what to iterate over.
        failed: called with an error of the loader when no step is half made; gives the error to
            raise, or None to end.
    """
    iterator = iter(loader)
    with _deaths_are_found_by_the_loader():
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                told = failed(error)
                if told is None:
                    return
                raise told from error
            yield batch


@contextmanager
def _deaths_are_found_by_the_loader() -> Iterator[None]:
    """Keeps PyTorch from raising the death of a data worker in the middle of a step.

    Its handler of SIGCHLD raises wherever Python is. The loader looks after its workers itself
    while it waits for them, and then the steps that were made can be saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    except Exception:
        # Put back, it would raise for the same worker again, as long as the loader lives.
        raise
    except BaseException:
        _restore(handler)
        raise
    _restore(handler)


def _restore(handler: Any) -> None:
    # None is a handler that Python knows nothing of.
    if handler is not None:
        signal.signal(signal.SIGCHLD, handler)


def data_failure(error: Exception, workers: int) -> str | None:
    """One line about an error of the loader, or None if it is not one of the data or the machine.

    Args:
        error: what the loader raised, perhaps around the error of a worker.
        workers: DATALOADER.NUM_WORKERS.
    """
    # An EOFError says nothing but its name.
    text = str(error).strip() or type(error).__name__
    # What a worker hands over is fetched from it: when it has died, the connection fails.
    lost = isinstance(error, ConnectionError | EOFError | FileNotFoundError)
    if "DataLoader worker (pid" in text or (workers and lost and WRAPPED not in text):
        return (
            f"a data worker died ({_last_line(text)}): most often the machine was out of memory; "
            f"lower DATALOADER.NUM_WORKERS (now {workers}), or enlarge /dev/shm"
        )
    if "/torch_" in text and workers:
        return (
            f"a data worker found no room in shared memory ({_last_line(text)}): enlarge /dev/shm, "
            f"or lower DATALOADER.NUM_WORKERS (now {workers})"
        )
    if isinstance(error, AnnotationError | ImageError):
        return _last_line(text)
    return None


def _last_line(text: str) -> str:
    """The message of an error, which comes from a worker with a traceback before it."""
    last = text.splitlines()[-1]
    if WRAPPED not in text:
        return last
    name, colon, message = last.partition(": ")
    return message if colon and name.replace(".", "").isidentifier() else last
