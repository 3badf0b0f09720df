# SPDX-License-Identifier: MIT
"""Writes benchmark results as JSON, Markdown and plots."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

from .case import Case
from .run import Machine, Result

OURS, THEIRS, PLAIN = "#1b6ca8", "#d1495b", "#8a8a8a"
SERIES = (OURS, PLAIN, THEIRS, "#edae49", "#00798c")  # bar colours, repeated from the first
# Families of ops by name prefix. Each has its own table and plot.
FAMILIES = {
    "Suppression": ("nms", "batched_nms", "soft_nms", "matrix_nms", "mask_nms", "weighted_box"),
    "RoIs": ("roi_", "multiscale_", "riroi_", "ps_roi", "prroi", "border_", "deform_roi",
             "deform_psroi"),
    "Boxes and losses": ("box_", "generalized_", "distance_", "complete_", "match_", "encode_",
                         "decode_", "rotated_iou", "linear_", "sigmoid_", "softmax_", "chamfer"),
    "Maps, attention and convolutions": ("deform_conv2d", "ms_deform", "point_sample", "carafe",
                                         "corner_", "rotated_feature", "active_", "masked_",
                                         "winograd_"),
    "Masks, keypoints and polygons": ("mask_", "masks_", "paste_", "heatmaps", "convex_",
                                      "min_area", "points_in"),
    "Teaching": ("axpy", "gdh", "mlp", "lltm"),
}  # fmt: skip


def op_family(op: str) -> str:
    """Returns the family whose table contains an op."""
    found = [name for name, prefixes in FAMILIES.items() if op.startswith(prefixes)]
    return found[0] if found else "Others"


def file_stem(machine: Machine) -> str:
    """Returns a machine's name in a form fit for file names."""
    return re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-")


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _limit(result: Result, machine: Machine, threads: int) -> float:
    """Returns the time that bytes and operations take at the measured bandwidth and peak."""
    case = result.case
    return max(case.bytes / machine.bandwidth[threads], case.flops / machine.peak[threads])


def _ratio(result: Result, threads: int) -> float | None:
    theirs = result.torchvision.get(threads, result.pytorch.get(threads))
    return None if theirs is None else theirs / result.ours[threads]


def to_json(machine: Machine, results: list[Result]) -> dict[str, Any]:
    """Returns all measurements, with times in seconds."""
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
    """Reads the output of :func:`to_json`; the restored cases cannot be called."""

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
    """Formats the table, with the ratio of medians at the lowest thread count."""
    threads = sorted(results[0].ours)
    min_threads, max_threads = threads[0], threads[-1]
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    lines = [
        f"{machine.name}; {versions}. Medians in milliseconds"
        + (
            f" on {min_threads} thread{'s' * (min_threads > 1)}."
            if machine.device == "cpu"
            else "."
        )
        + " Ratio: torchvision's time over ours, or PyTorch's where torchvision has no such op."
        + f" Limit: the time that reading the inputs and writing the outputs once takes at the "
        f"measured {machine.bandwidth[min_threads] / 1e9:.1f} GB/s, or the arithmetic at the "
        f"measured {machine.peak[min_threads] / 1e9:.0f} GFLOP/s, whichever is longer, and how "
        "much of our time that is.",
        "",
    ]
    head = ["op", "case", "layout", "dtype", "PyTorch", "torchvision", "detops", "ratio", "limit"]
    if max_threads != min_threads:
        head += [f"detops, {max_threads} threads", "gain"]
    for family, rows in by_family(results).items():
        lines += [
            f"### {family}",
            "",
            " | ".join(["", *head, ""]).strip(),
            "|---" * len(head) + "|",
        ]
        lines += [_row(r, machine, min_threads, max_threads) for r in rows] + [""]
    return "\n".join(lines)


def _row(r: Result, machine: Machine, min_threads: int, max_threads: int) -> str:
    ratio, limit = _ratio(r, min_threads), _limit(r, machine, min_threads)
    op, *suffix = r.case.op.split()
    row = [
        " ".join([f"`{op}`", *suffix]),
        r.case.name,
        r.case.layout,
        r.case.dtype,
        _milliseconds(r.pytorch.get(min_threads)),
        _milliseconds(r.torchvision.get(min_threads)),
        _milliseconds(r.ours[min_threads]),
        "-" if ratio is None else f"**{ratio:,.0f}x**" if ratio >= 10 else f"**{ratio:.1f}x**",
        f"{_milliseconds(limit)} ({100 * limit / r.ours[min_threads]:.0f}%)",
    ]
    if max_threads != min_threads:
        row += [
            _milliseconds(r.ours[max_threads]),
            f"{r.ours[min_threads] / r.ours[max_threads]:.2f}x",
        ]
    return "| " + " | ".join(row) + " |"


def by_family(results: list[Result]) -> dict[str, list[Result]]:
    """Groups results by family, in the order of ``FAMILIES``, without empty families."""
    families: dict[str, list[Result]] = {name: [] for name in [*FAMILIES, "Others"]}
    for result in results:
        families[op_family(result.case.op)].append(result)
    return {name: rows for name, rows in families.items() if rows}


def plot(results: list[Result], folder: Path) -> list[Path]:
    """Plots time against size, and the speed-ups of each family; returns the files.

    Raises:
        ImportError: matplotlib is missing.
    """
    min_threads = min(results[0].ours)
    files = [_plot_times(results, folder)]
    for family, rows in by_family(results).items():
        ratios: dict[str, list[float]] = {}
        for r in rows:
            if (ratio := _ratio(r, min_threads)) is not None:
                ratios.setdefault(r.case.op, []).append(ratio)
        if ratios:
            name = f"speedups-{family.split()[0].lower().strip(',')}.svg"
            of = "torchvision, or PyTorch where it has no such op" + ", one thread" * (
                min_threads == 1
            )
            files.append(bars({"detops": ratios}, folder / name, f"times as fast as {of}"))
    return files


def bars(ratios: dict[str, dict[str, list[float]]], path: Path, label: str) -> Path:
    """Draws a bar per name for the median ratio, and a line from the lowest to the highest.

    Args:
        ratios: the ratios per series and name.
        path: the output file.
        label: axis label that describes the ratios.
    """
    plt = pyplot()
    names = list(dict.fromkeys(name for series in ratios.values() for name in series))
    height = 0.8 / len(ratios)
    figure, axis = plt.subplots(figsize=(7, 0.34 * len(names) * (1 + len(ratios)) / 2 + 0.8))
    for k, (series, values) in enumerate(ratios.items()):
        legend: str | None = series
        for i, name in enumerate(names):
            if name not in values:
                continue
            position, median = i + k * height, statistics.median(values[name])
            colour = SERIES[k % len(SERIES)]
            axis.barh(position, median, height * 0.9, color=colour, label=legend)
            legend = None  # one entry for all bars of a series
            axis.plot([min(values[name]), max(values[name])], [position] * 2, color="black", lw=0.8)
            shown = f" {median:,.0f}x" if median >= 10 else f" {median:.1f}x"
            axis.text(max(values[name]), position, shown, va="center", fontsize=8)
    axis.set_yticks([i + (len(ratios) - 1) * height / 2 for i in range(len(names))], names)
    axis.set(xscale="log", xlabel=label)
    axis.xaxis.set_major_formatter("{x:,g}x")
    axis.set_axisbelow(True)
    axis.axvline(1, color="black", linewidth=1)
    axis.grid(axis="y", visible=False)
    axis.margins(x=0.12)
    axis.invert_yaxis()
    if len(ratios) > 1:
        axis.legend(loc="lower right")
    return save(figure, path)


def pyplot() -> Any:
    """Returns matplotlib, configured to write identical files for identical figures."""
    import matplotlib

    matplotlib.use("svg")
    style = {"svg.hashsalt": "detops", "svg.fonttype": "none", "font.size": 9, "axes.grid": True}
    matplotlib.rcParams.update(style)
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> Path:
    """Writes a figure without the date."""
    import matplotlib.pyplot as plt

    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return path


def _plot_times(results: list[Result], folder: Path) -> Path:
    plt = pyplot()
    names = list(dict.fromkeys(r.case.series for r in results if r.case.series))
    figure, axes = plt.subplots(1, max(1, len(names)), figsize=(4 * max(1, len(names)), 3.2))
    for axis, name in zip([axes] if len(names) < 2 else axes, names, strict=False):
        rows = [r for r in results if r.case.series == name]
        min_threads = min(rows[0].ours)
        for label, color, times in (
            ("PyTorch", PLAIN, [r.pytorch for r in rows]),
            ("torchvision", THEIRS, [r.torchvision for r in rows]),
            ("detops", OURS, [r.ours for r in rows]),
        ):
            points = [
                (r.case.size, t[min_threads] * 1e3)
                for r, t in zip(rows, times, strict=True)
                if min_threads in t
            ]
            if points:
                axis.loglog(*zip(*points, strict=True), "o-", color=color, label=label)
        axis.set(title=name, xlabel="N", ylabel="ms")
        axis.legend()
    return save(figure, folder / "times.svg")
