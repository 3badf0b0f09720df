# SPDX-License-Identifier: MIT
"""Training metrics, as JSON lines and for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..distributed import is_main
from .checkpoint import replacing, writing

Record = dict[str, Any]


@contextmanager
def metrics_writer(
    folder: Path, step: int = 0, tensorboard: bool = False
) -> Iterator[Callable[[Record], None]]:
    """Appends to `metrics.jsonl` and to TensorBoard event files, in the main process only.

    Args:
        folder: folder of the files.
        step: number of steps done before; records of later steps are removed.
        tensorboard: also write event files.

    Yields:
        The function to call with each step's record: `step`, numbers, and dicts of numbers.

    Raises:
        ImportError: TensorBoard is requested but not installed.
        OutputError: the lines cannot be written.
    """
    if not is_main():
        yield lambda record: None
        return
    with ExitStack() as stack:
        # Open this first, because TensorBoard may not be installed.
        events = stack.enter_context(_summary_writer(folder, step)) if tensorboard else None
        path = folder / "metrics.jsonl"
        with writing(path):
            _drop_lines_after(path, step)
            # Unbuffered: a killed run leaves the lines of its completed steps, and closing the file
            # writes nothing.
            lines = stack.enter_context(open(path, "ab", buffering=0))

        def write(record: Record) -> None:
            with writing(path):
                lines.write((json.dumps(record) + "\n").encode())
            if events is not None:
                for name, value in scalars(record).items():
                    events.add_scalar(name, value, record["step"])

        yield write


def scalars(record: Record, prefix: str = "") -> dict[str, float]:
    """Returns a record's numbers by name, nested ones as `outer/inner`, without None."""
    found: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, dict):
            found |= scalars(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and key != "step":
            found[prefix + key] = value
    return found


def read_metrics(path: Path) -> list[Record]:
    """Reads the records of a metrics file; damaged and truncated lines are skipped."""
    return [record for _, record in _records(path)]


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "metrics for TensorBoard require tensorboard: pip install tensorboard"
        ) from error
    return SummaryWriter(str(folder), purge_step=step + 1)


def _drop_lines_after(path: Path, step: int) -> None:
    if not path.is_file():
        return
    kept = [line + b"\n" for line, record in _records(path) if record["step"] <= step]
    with replacing(path) as file:  # a full disk must not destroy the existing lines
        file.writelines(kept)


def _records(path: Path) -> Iterator[tuple[bytes, Record]]:
    for line in path.read_bytes().split(b"\n"):
        try:
            record = json.loads(line)
        except ValueError:  # not JSON, or not UTF-8
            continue
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            yield line, record
