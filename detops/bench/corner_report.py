# SPDX-License-Identifier: MIT
"""Measures time and memory of the rows of `detops bench corners`, and reports them.

Times are CPU times of the one working thread, which other load on the machine disturbs least.
"""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import torch
from rich.console import Console

from .case import Call, Case
from .corner_calls import calls, tiny
from .corners import LIMIT_SECONDS, OPS, Corner, corners, gaps
from .memory import CLEAR_REFS, peak_resident, reset_peak
from .report import file_stem
from .run import Machine, describe_machine

BLOCK_SECONDS = 0.004  # length of a block of calls before the other version runs
MIN_SECONDS, MIN_ROUNDS, MAX_ROUNDS = 0.4, 5, 60
REMEASURE_ROUNDS = 25  # for a row that came out below a floor
MIN_BYTES = 1 << 20  # smaller peaks measure the allocator's pages rather than the op
FLOOR, NOISY_FLOOR, MAX_MEMORY_RATIO = 1.0, 0.9, 2.0


@dataclass
class Row:
    """One row of the report.

    Times are medians in seconds. ``spread`` holds the quartiles of the ratios of single rounds.
    """

    op: str
    name: str
    layout: str
    dtype: str
    ours: float
    theirs: float
    spread: tuple[float, float]
    our_peak: int | None = None  # bytes on top of those in use before the call
    their_peak: int | None = None
    again: bool = False  # below a floor at first, hence measured a second time

    @property
    def ratio(self) -> float:
        """Their time over ours."""
        return self.theirs / self.ours

    @property
    def memory(self) -> float | None:
        """Our peak over theirs, or None if both are too small to measure."""
        if self.our_peak is None or self.their_peak is None:
            return None
        if max(self.our_peak, self.their_peak) < MIN_BYTES:
            return None
        return self.our_peak / max(self.their_peak, MIN_BYTES)

    @property
    def below(self) -> bool:
        """Returns whether a floor is missed: slower beyond the noise, or over twice the memory."""
        noisy = self.spread[1] >= FLOOR
        slow = self.ratio < (NOISY_FLOOR if noisy else FLOOR)
        return slow or (self.memory or 0) > MAX_MEMORY_RATIO


def time_alternately(
    calls: Sequence[Call], block: float, seconds: float, rounds: int, max_rounds: float = math.inf
) -> list[list[float]]:
    """Returns the seconds per call of each callable in every round, timing blocks of calls in turn.

    Args:
        calls: the callables to time.
        block: seconds of one block of calls.
        seconds: minimum duration of all rounds together.
        rounds: minimum number of rounds.
        max_rounds: maximum number of rounds; it takes precedence over ``seconds``.
    """
    counts = []
    for call in calls:
        call()
        began = thread_time()
        call()
        counts.append(max(1, int(block / max(1e-7, thread_time() - began))))
    times: list[list[float]] = [[] for _ in calls]
    keep_freed_memory(True)
    began = thread_time()
    while len(times[0]) < rounds or thread_time() - began < seconds:
        for call, count, kept in zip(calls, counts, times, strict=True):
            start = thread_time()
            for _ in range(count):
                call()
            kept.append((thread_time() - start) / count)
        if len(times[0]) >= max_rounds:
            break
    keep_freed_memory(False)
    return times


def time_pair(
    ours: Call, theirs: Call, rounds: int = MIN_ROUNDS
) -> tuple[float, float, tuple[float, float]]:
    """Returns the median times of both calls, timed in turn, and the quartiles of their ratio."""
    our_times, their_times = time_alternately(
        (ours, theirs), BLOCK_SECONDS, MIN_SECONDS, rounds, MAX_ROUNDS
    )
    ratios = [b / a for a, b in zip(our_times, their_times, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return statistics.median(our_times), statistics.median(their_times), (low, high)


def peak_memory(call: Call) -> int | None:
    """Returns the peak growth in bytes of resident memory during a call, result included.

    The call runs twice in a forked process: the first run loads code and warms up. The allocator
    then returns all free memory to the system, so scratch memory from any source counts in the
    second run. Returns None where the system does not report the peak.
    """
    if not CLEAR_REFS.exists():
        return None
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        with os.fdopen(reader) as result:
            text = result.read()
        os.waitpid(child, 0)
        return int(text) if text else None
    try:
        call()
        gc.collect()
        before = reset_peak()
        kept = call()
        os.write(writer, str(max(0, peak_resident() - before)).encode())
        del kept
    finally:
        os._exit(0)


def keep_freed_memory(keep: bool) -> None:
    """Sets whether glibc's allocator keeps freed memory in the process; no effect elsewhere.

    On a virtual machine a fresh page can cost far more than the op, and the cost varies between
    calls. Times therefore exclude it; :func:`peak_memory` counts the pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # -4 is M_MMAP_MAX and -1 is M_TRIM_THRESHOLD; keep=False sets glibc's defaults.
    if mallopt is not None:
        mallopt(-4, 0 if keep else 1 << 16)
        mallopt(-1, 2**31 - 1 if keep else 1 << 17)


def measure(corner: Corner, rounds: int = MIN_ROUNDS) -> Row | None:
    """Measures a row; returns None if torchvision alone takes too long."""
    ours, theirs = calls(corner)
    began = thread_time()
    theirs()
    if thread_time() - began > 1.5 * LIMIT_SECONDS:  # a first call is slower than others
        return None
    peaks = (peak_memory(ours), peak_memory(theirs))
    times = time_pair(ours, theirs, rounds)
    return Row(f"{corner.op} {corner.direction}", corner.name(), corner.layout, corner.dtype,
               *times, *peaks)  # fmt: skip


def measure_tiny(case: Case, rounds: int = MIN_ROUNDS) -> Row:
    """Measures a call whose memory is too small to count."""
    assert case.torchvision is not None
    return Row(case.op, case.name, "", case.dtype, *time_pair(case.ours, case.torchvision, rounds))


def markdown(machine: Machine, rows: list[Row], left_out: list[str]) -> str:
    """Formats the table, slowest rows first, then the list of skipped rows."""
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    below = [row for row in rows if row.below]
    lines = [
        f"{machine.name}; {versions}. One thread; milliseconds of processor time, "
        "medians of calls in turn, in memory that the process keeps. Ratio: "
        "torchvision's time over ours, with the quartiles of single rounds. Peak: MiB by which "
        "the process grows during a call, its result included, and ours over torchvision's, where "
        "one of them is above 1 MiB. `roi_align_rotated` is compared with `grid_sample` and a "
        "mean, since torchvision has no such op; where the dtype is bfloat16, which torchvision's "
        "RoI ops do not take, with a cast to float32, its op and a cast back. Rows with a * "
        "came out below a floor and were measured a second time, over more rounds, which counts.",
        "",
        f"{len(rows)} rows, {len(below)} below the floor of {FLOOR} ({NOISY_FLOOR} where rounds "
        f"scatter across {FLOOR}) or above {MAX_MEMORY_RATIO:.0f} times the memory. "
        f"Median ratio {statistics.median(row.ratio for row in rows):.1f}.",
        "",
        "| op | case | layout | dtype | torchvision | detops | ratio | peak | memory |",
        "|---" * 9 + "|",
    ]
    for row in sorted(rows, key=lambda row: row.ratio):
        peak = "" if row.our_peak is None else f"{row.our_peak / 2**20:,.1f}"
        memory = "" if row.memory is None else f"{row.memory:.2f}"
        lines.append(
            f"| `{row.op}` | {row.name} | {row.layout} | {row.dtype} | {row.theirs * 1e3:.3g} | "
            f"{row.ours * 1e3:.3g} | {'**' * row.below}{row.ratio:.2f}{'**' * row.below} "
            f"({row.spread[0]:.2f} to {row.spread[1]:.2f}){' *' * row.again} | {peak} | {memory} |"
        )
    if left_out:
        lines += ["", "Left out:", "", *(f"- {text}" for text in left_out)]
    return "\n".join(lines) + "\n"


def to_json(machine: Machine, rows: list[Row], left_out: list[str]) -> dict[str, Any]:
    """Returns all measurements, with times in seconds and memory in bytes."""
    return {
        "device": machine.name,
        "versions": machine.versions,
        "threads": 1,
        "results": [
            vars(row) | {"ratio": row.ratio, "memory": row.memory, "below": row.below}
            for row in sorted(rows, key=lambda row: row.ratio)
        ],
        "left_out": left_out,
    }


def run(only: list[str], output: Path | None, console: Console, messages: Console) -> None:
    """Measures the corners and prints their table.

    Args:
        only: prefixes of op names, or ``tiny`` for the tiny calls; empty for all.
        output: folder for ``corners-<device>.json`` and ``.md``.
        console: console for the table.
        messages: console for progress.

    Raises:
        ValueError: no op has such a name.
        ImportError: torchvision is missing.
    """
    prefixes = tuple(only)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, left_out = _measure_all(prefixes, messages)
    finally:
        torch.set_num_threads(before)
    if not rows:
        raise ValueError(f"no corners of {', '.join(only)}; expected one of {', '.join(OPS)}")
    machine = describe_machine(torch.device("cpu"))
    table = markdown(machine, rows, left_out)
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        stem = f"corners-{file_stem(machine)}"
        data = to_json(machine, rows, left_out)
        (output / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
        (output / f"{stem}.md").write_text(table)


def _measure_all(prefixes: tuple[str, ...], messages: Console) -> tuple[list[Row], list[str]]:
    """Measures all rows.

    A row below a floor is measured again after all others, over more rounds. The second result
    counts.
    """
    rows, left_out = [], []
    pending: list[tuple[str, Callable[..., Row | None]]] = [
        (
            f"{corner.op} {corner.direction}, {corner.name()} {corner.layout} {corner.dtype}",
            partial(measure, corner),
        )
        for corner in corners(prefixes)
    ]
    if not prefixes or "tiny".startswith(prefixes):
        pending += [(f"{case.op}, {case.name}", partial(measure_tiny, case)) for case in tiny()]
    below = []
    for name, measured in pending:
        messages.print(name)
        row = measured()
        if row is None:
            left_out.append(f"`{name}`: torchvision takes more than {LIMIT_SECONDS:.0f} s")
        elif row.below:
            below.append((name, measured))
        else:
            rows.append(row)
    for name, measured in below:
        messages.print(f"{name}, again")
        if (row := measured(rounds=REMEASURE_ROUNDS)) is not None:
            rows.append(replace(row, again=True))
    for op in OPS:
        if not prefixes or op.startswith(prefixes):
            left_out += gaps(op)
    return rows, left_out
