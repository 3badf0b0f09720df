# SPDX-License-Identifier: MIT
"""Progress on the terminal, and as plain lines where there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PLAIN_LINES = 20  # how many lines a whole run prints where nothing can be redrawn
SMOOTHING = 0.95  # of the loss and step time shown


@contextmanager
def training_progress(
    console: Console, total: int, start: int = 0
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Shows loss, learning rate, step time and remaining time of a training.

    Args:
        console: where to.
        total: steps in all.
        start: steps done before.

    Yields:
        The function to call with each step's record: step, loss, lr, seconds; `skipped` if it was
        not taken.
    """
    shown: dict[str, float] = {}

    def text(record: dict[str, Any]) -> str:
        for key in ("loss", "seconds"):
            # A loss that was not finite is None.
            if (value := record[key]) is not None:
                shown[key] = SMOOTHING * shown.get(key, value) + (1 - SMOOTHING) * value
        loss = shown.get("loss", math.nan)
        return f"loss {loss:.3f}  lr {record['lr']:.2e}  {shown['seconds']:.2f} s/step"

    def tell_skipped(record: dict[str, Any]) -> None:
        if "skipped" in record:
            what = ", ".join(key for key, value in record.items() if value is None)
            console.print(f"step {record['step']} was not taken: {what} not finite")

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    if console.is_terminal:
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=total, completed=start)

            def redraw(record: dict[str, Any]) -> None:
                tell_skipped(record)
                progress.update(task, completed=record["step"], description=text(record))

            yield redraw
        return

    every = max(1, total // PLAIN_LINES)

    def report(record: dict[str, Any]) -> None:
        tell_skipped(record)
        line = text(record)
        if record["step"] % every == 0 or record["step"] == total:
            left = (total - record["step"]) * shown["seconds"]
            console.print(f"step {record['step']}/{total}  {line}  left {left:.0f} s")

    yield report


@contextmanager
def counting_progress(console: Console, title: str) -> Iterator[Callable[[int, int], None]]:
    """Shows how many of a number of things are done.

    Yields:
        The function to call with (done, in all).
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
