# SPDX-License-Identifier: MIT
"""Times and weighs the rows of `detops bench corners`, and writes them down.

Times are the processor's, of the one thread that works: what else the machine does disturbs them
least.
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
from .memory import FORGET, forget_most, most_resident
from .report import stem_of
from .run import Machine, machine_of

BLOCK_SECONDS = 0.004  # of one version, before it is the other's turn
LEAST_SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 0.4, 5, 60
ROUNDS_AGAIN = 25  # of a row that came out below a floor
LEAST_BYTES = 1 << 20  # below it, a peak is pages of the allocator rather than of the op
FLOOR, NOISY_FLOOR, MOST_MEMORY = 1.0, 0.9, 2.0


@dataclass
class Row:
    """Medians in seconds; ``spread`` are the quartiles of the ratios of single rounds."""

    op: str
    name: str
    layout: str
    dtype: str
    ours: float
    theirs: float
    spread: tuple[float, float]
    our_peak: int | None = None  # bytes on top of what is there before the call
    their_peak: int | None = None
    again: bool = False  # below a floor at first, and measured a second time

    @property
    def ratio(self) -> float:
        """Their time over ours."""
        return self.theirs / self.ours

    @property
    def memory(self) -> float | None:
        """Our peak over theirs, where one of them is large enough to be measured."""
        if self.our_peak is None or self.their_peak is None:
            return None
        if max(self.our_peak, self.their_peak) < LEAST_BYTES:
            return None
        return self.our_peak / max(self.their_peak, LEAST_BYTES)

    @property
    def below(self) -> bool:
        """Under a floor: slower by more than what rounds differ by, or twice the memory."""
        noisy = self.spread[1] >= FLOOR
        slow = self.ratio < (NOISY_FLOOR if noisy else FLOOR)
        return slow or (self.memory or 0) > MOST_MEMORY


def in_turns(
    calls: Sequence[Call], block: float, seconds: float, rounds: int, most: float = math.inf
) -> list[list[float]]:
    """Seconds of each call in every round, in which each has a block of calls in its turn.

    Args:
        calls: what is timed.
        block: seconds that one of them takes its turn for.
        seconds: that there are rounds for, at least.
        rounds: how many there are at least.
        most: how many there are at most.
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
        if len(times[0]) >= most:
            break
    keep_freed_memory(False)
    return times


def time_pair(
    ours: Call, theirs: Call, rounds: int = LEAST_ROUNDS
) -> tuple[float, float, tuple[float, float]]:
    """Medians of both, a block of calls of one and of the other in turn, and the quartiles."""
    our_times, their_times = in_turns(
        (ours, theirs), BLOCK_SECONDS, LEAST_SECONDS, rounds, MOST_ROUNDS
    )
    ratios = [b / a for a, b in zip(our_times, their_times, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return statistics.median(our_times), statistics.median(their_times), (low, high)


def peak_of(call: Call) -> int | None:
    """Bytes by which the resident memory grows at most during a call, its result included.

    The call runs in a forked process of its own, a second time after the first has loaded code and
    warmed up, with all that the allocator holds free handed back before: scratch memory counts
    wherever it comes from. None where the system does not tell.
    """
    if not FORGET.exists():
        return None
    ours, theirs = os.pipe()
    child = os.fork()
    if child:
        os.close(theirs)
        with os.fdopen(ours) as result:
            text = result.read()
        os.waitpid(child, 0)
        return int(text) if text else None
    try:
        call()
        gc.collect()
        before = forget_most()
        kept = call()
        os.write(theirs, str(max(0, most_resident() - before)).encode())
        del kept
    finally:
        os._exit(0)


def keep_freed_memory(keep: bool) -> None:
    """Whether what is freed stays with the process, where the allocator is glibc's.

    A fresh page costs what the system asks for it, which on a virtual machine can be far more than
    the op and differs from call to call. Times are taken without; :func:`peak_of` counts the pages.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # M_MMAP_MAX and M_TRIM_THRESHOLD by number, else with its own values
        mallopt(-4, 0 if keep else 1 << 16)
        mallopt(-1, 2**31 - 1 if keep else 1 << 17)


def measure(corner: Corner, rounds: int = LEAST_ROUNDS) -> Row | None:
    """None where torchvision alone takes too long."""
    ours, theirs = calls(corner)
    began = thread_time()
    theirs()
    if thread_time() - began > 1.5 * LIMIT_SECONDS:  # a first call is slower than others
        return None
    peaks = (peak_of(ours), peak_of(theirs))
    times = time_pair(ours, theirs, rounds)
    return Row(f"{corner.op} {corner.direction}", corner.name(), corner.layout, corner.dtype,
               *times, *peaks)  # fmt: skip


def measure_tiny(case: Case, rounds: int = LEAST_ROUNDS) -> Row:
    """A call too small for its memory to count."""
    assert case.torchvision is not None
    return Row(case.op, case.name, "", case.dtype, *time_pair(case.ours, case.torchvision, rounds))


def markdown(machine: Machine, rows: list[Row], left_out: list[str]) -> str:
    """The table, the slowest rows first, and what is not in it."""
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
        f"scatter across {FLOOR}) or above {MOST_MEMORY:.0f} times the memory. "
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
    """All that was measured; times in seconds, memory in bytes."""
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
        only: beginnings of op names; all ops without any, and ``tiny`` for the tiny calls.
        output: folder for ``corners-<device>.json`` and ``.md``.
        console: for the table.
        messages: for progress.

    Raises:
        ValueError: no op of such a name.
        ImportError: no torchvision to compare with.
    """
    wanted = tuple(only)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows, left_out = _measure_all(wanted, messages)
    finally:
        torch.set_num_threads(before)
    if not rows:
        raise ValueError(f"no corners of {', '.join(only)}; there are those of {', '.join(OPS)}")
    machine = machine_of(torch.device("cpu"))
    table = markdown(machine, rows, left_out)
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        stem = f"corners-{stem_of(machine)}"
        data = to_json(machine, rows, left_out)
        (output / f"{stem}.json").write_text(json.dumps(data, indent=1) + "\n")
        (output / f"{stem}.md").write_text(table)


def _measure_all(wanted: tuple[str, ...], messages: Console) -> tuple[list[Row], list[str]]:
    """A row below a floor is measured a second time, longer, after all others; that time counts."""
    rows, left_out = [], []
    todo: list[tuple[str, Callable[..., Row | None]]] = [
        (
            f"{corner.op} {corner.direction}, {corner.name()} {corner.layout} {corner.dtype}",
            partial(measure, corner),
        )
        for corner in corners(wanted)
    ]
    if not wanted or "tiny".startswith(wanted):
        todo += [(f"{case.op}, {case.name}", partial(measure_tiny, case)) for case in tiny()]
    below = []
    for name, measured in todo:
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
        if (row := measured(rounds=ROUNDS_AGAIN)) is not None:
            rows.append(replace(row, again=True))
    for op in OPS:
        if not wanted or op.startswith(wanted):
            left_out += gaps(op)
    return rows, left_out
