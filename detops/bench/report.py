# SPDX-License-Identifier: MIT
"""Writes the times down: JSON, Markdown and plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .case import Case
from .run import Machine, Result

OURS, THEIRS, PLAIN = "#1b6ca8", "#d1495b", "#8a8a8a"


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _limit(result: Result, machine: Machine, threads: int) -> float:
    """The time that bytes and operations take at the measured bandwidth and peak."""
    case = result.case
    return max(case.bytes / machine.bandwidth[threads], case.flops / machine.peak[threads])


def _ratio(result: Result, threads: int) -> float | None:
    theirs = result.torchvision.get(threads, result.pytorch.get(threads))
    return None if theirs is None else theirs / result.ours[threads]


def to_json(machine: Machine, results: list[Result]) -> dict[str, Any]:
    """All that was measured; times in seconds."""
    return {
        "device": machine.name,
        "versions": machine.versions,
        "bandwidth_bytes_per_second": machine.bandwidth,
        "peak_flops_per_second": machine.peak,
        "results": [
            {
                "op": r.case.op,
                "case": r.case.name,
                "layout": r.case.layout,
                "dtype": r.case.dtype,
                "bytes": r.case.bytes,
                "flops": r.case.flops,
                "bandwidth": r.case.bandwidth,
                "detops": r.ours,
                "torchvision": r.torchvision,
                "pytorch": r.pytorch,
                "limit": {n: _limit(r, machine, n) for n in r.ours},
            }
            for r in results
        ],
    }


def from_json(data: dict[str, Any], device: str) -> tuple[Machine, list[Result]]:
    """What :func:`to_json` wrote down; the cases cannot be called again."""

    def by_threads(times: dict[str, float]) -> dict[int, float]:
        return {int(n): value for n, value in times.items()}

    machine = Machine(
        data["device"],
        data["versions"],
        by_threads(data["bandwidth_bytes_per_second"]),
        by_threads(data["peak_flops_per_second"]),
        device,
    )
    results = []
    for row in data["results"]:
        case = Case(row["op"], row["case"], lambda: None)
        case.layout, case.dtype = row["layout"], row["dtype"]
        case.bytes, case.flops = row["bytes"], row["flops"]
        case.bandwidth = row.get("bandwidth", False)
        versions = (by_threads(row[name]) for name in ("detops", "torchvision", "pytorch"))
        results.append(Result(case, *versions))
    return machine, results


def markdown(machine: Machine, results: list[Result]) -> str:
    """The table, with the ratio of the medians on the fewest threads."""
    threads = sorted(results[0].ours)
    few, many = threads[0], threads[-1]
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"{machine.name}; {versions}. Medians in milliseconds"
        + (f" on {few} thread{'s' * (few > 1)}." if machine.device == "cpu" else ".")
        + " Ratio: torchvision's time over ours, or PyTorch's where torchvision has no such op."
        + f" Limit: the time that reading the inputs and writing the outputs once takes at the "
        f"measured {machine.bandwidth[few] / 1e9:.1f} GB/s, or the arithmetic at the measured "
        f"{machine.peak[few] / 1e9:.0f} GFLOP/s, whichever is longer, and how much of our time "
        "that is.",
        "",
    ]
    head = ["op", "case", "layout", "dtype", "PyTorch", "torchvision", "detops", "ratio", "limit"]
    if many != few:
        head += [f"detops, {many} threads", "gain"]
    lines += [" | ".join(["", *head, ""]).strip(), "|---" * len(head) + "|"]
    for r in results:
        ratio, limit = _ratio(r, few), _limit(r, machine, few)
        row = [
            f"`{r.case.op.split()[0]}`" + "".join(f" {word}" for word in r.case.op.split()[1:]),
            r.case.name,
            r.case.layout,
            r.case.dtype,
            _milliseconds(r.pytorch.get(few)),
            _milliseconds(r.torchvision.get(few)),
            _milliseconds(r.ours[few]),
            "-" if ratio is None else f"**{ratio:,.0f}x**" if ratio >= 10 else f"**{ratio:.1f}x**",
            f"{_milliseconds(limit)} ({100 * limit / r.ours[few]:.0f}%)",
        ]
        if many != few:
            row += [_milliseconds(r.ours[many]), f"{r.ours[few] / r.ours[many]:.2f}x"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def plot(results: list[Result], folder: Path) -> list[Path]:
    """Time against size, and the speed-ups; returns the files.

    Raises:
        ImportError: without matplotlib.
    """
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "detops", "font.size": 9, "axes.grid": True})
    return [_plot_times(results, folder), _plot_ratios(results, folder)]


def _save(figure: Any, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return path


def _plot_times(results: list[Result], folder: Path) -> Path:
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(r.case.series for r in results if r.case.series))
    figure, axes = plt.subplots(1, max(1, len(names)), figsize=(4 * max(1, len(names)), 3.2))
    for axis, name in zip([axes] if len(names) < 2 else axes, names, strict=False):
        rows = [r for r in results if r.case.series == name]
        few = min(rows[0].ours)
        for label, color, times in (
            ("PyTorch", PLAIN, [r.pytorch for r in rows]),
            ("torchvision", THEIRS, [r.torchvision for r in rows]),
            ("detops", OURS, [r.ours for r in rows]),
        ):
            points = [
                (r.case.size, t[few] * 1e3) for r, t in zip(rows, times, strict=True) if few in t
            ]
            if points:
                axis.loglog(*zip(*points, strict=True), "o-", color=color, label=label)
        axis.set(title=name, xlabel="N", ylabel="ms")
        axis.legend()
    return _save(figure, folder / "times.svg")


def _plot_ratios(results: list[Result], folder: Path) -> Path:
    import matplotlib.pyplot as plt

    few = min(results[0].ours)
    bars = [(r, ratio) for r in results if r.torchvision and (ratio := _ratio(r, few)) is not None]
    labels = [
        ", ".join(filter(None, [r.case.op, r.case.name, r.case.layout]))
        + ("" if r.case.dtype == "float32" else f", {r.case.dtype}")
        for r, _ in bars
    ]
    figure, axis = plt.subplots(figsize=(7, 0.19 * len(bars) + 0.8))
    axis.barh(range(len(bars)), [ratio for _, ratio in bars], color=OURS, height=0.7)
    axis.set_yticks(range(len(bars)), labels, fontsize=6)
    for i, (_, ratio) in enumerate(bars):
        axis.text(ratio, i, f" {ratio:.0f}x", va="center", fontsize=6)
    axis.set(xscale="log", xlabel="times as fast as torchvision, one thread" * (few == 1))
    axis.axvline(1, color="black", linewidth=1)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    return _save(figure, folder / "speedups.svg")
