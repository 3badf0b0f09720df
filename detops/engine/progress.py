# SPDX-License-Identifier: MIT
"""Progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINES_PER_RUN = 20  # lines that a whole run prints if the console is no terminal
SMOOTHING = 0.95  # for the displayed losses and step time
LOSS_PREFIX = "loss_"  # prefix of the names of the loss's parts
AP_KEYS = ("AP", "AP50", "AP75")


def peak_memory(device: torch.device | None = None) -> int:
    """Returns the peak memory use in bytes, of a CUDA device or else of this process."""
    if device is not None and device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts kilobytes


def smoothed(average: float, value: float | None) -> float:
    """Updates a moving average, NaN before the first value; None (not finite) is skipped.

    >>> smoothed(1.0, 2.0)
    1.05
    """
    if value is None:
        return average
    return value if math.isnan(average) else SMOOTHING * average + (1 - SMOOTHING) * value


class _DescribedBelow(Progress):
    """A progress bar with the description of each task below it, where it can wrap."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Returns the bar and the description."""
        yield from super().get_renderables()
        for task in self.tasks:
            yield Text(task.description)


def _is_smoothed(key: str) -> bool:
    return key in ("loss", "seconds") or key.startswith(LOSS_PREFIX)


@contextmanager
def training_progress(
    console: Console,
    total: int,
    start: int = 0,
    images: int = 0,
    device: torch.device | None = None,
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows the loss and its parts, rates, memory, evaluations and remaining time of training.

    Args:
        console: the console to print on.
        total: total number of steps.
        start: number of steps done before.
        images: images per step, over all processes; 0 hides their rate.
        device: device whose memory is shown; by default the main memory.

    Yields:
        The function to call with each step's record: step, loss, its parts (`loss_...`), lr,
        seconds; `evaluation` if there was one; `skipped` if the update was skipped.
    """
    averages: dict[str, float] = {}

    def text(record: dict[str, Any]) -> str:
        for key in filter(_is_smoothed, record):
            # A loss that is not finite is recorded as None.
            if record[key] is not None:
                averages[key] = smoothed(averages.get(key, math.nan), record[key])
        loss, seconds = averages.get("loss", math.nan), averages["seconds"]
        parts = [
            f"{k.removeprefix(LOSS_PREFIX)} {v:.3f}"
            for k, v in averages.items()
            if k.startswith(LOSS_PREFIX)
        ]
        fields = [f"loss {loss:.3f}" + (f" ({', '.join(parts)})" if parts else "")]
        fields += [f"lr {record['lr']:.2e}", f"{seconds:.2f} s/step"]
        fields += [f"{images / seconds:.1f} images/s"] if images and seconds else []
        return "  ".join([*fields, f"{peak_memory(device) / 2**20:.0f} MB"])

    def print_events(record: dict[str, Any]) -> None:
        if "skipped" in record:
            not_finite = ", ".join(key for key, value in record.items() if value is None)
            console.print(f"step {record['step']} skipped: {not_finite} not finite")
        for name, metrics in record.get("evaluation", {}).items():
            values = (f"{key} {metrics[key]:.3f}" for key in AP_KEYS if metrics[key] is not None)
            console.print(f"step {record['step']}: {name}: {'  '.join(values) or 'no objects'}")

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    if console.is_terminal:
        with _DescribedBelow(*columns, console=console) as progress:
            task = progress.add_task("", total=total, completed=start)

            def redraw(record: dict[str, Any]) -> None:
                print_events(record)
                progress.update(task, completed=record["step"], description=text(record))

            yield redraw
        return

    every = max(1, total // LINES_PER_RUN)

    def report(record: dict[str, Any]) -> None:
        print_events(record)
        line = text(record)
        if record["step"] % every == 0 or record["step"] == total:
            left = (total - record["step"]) * averages["seconds"]
            console.print(f"step {record['step']}/{total}  {line}  left {left:.0f} s")

    yield report


@contextmanager
def counting_progress(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar over a number of items.

    Yields:
        The function to call with (done, total).
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
