"""Writes the plots and tables of docs/performance*.md from the files in benchmarks/results.

python benchmarks/page.py
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from detops.bench.report import bars, from_json, markdown, plot
from detops.marks import fill

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE, FIGURES = "performance.md", "performance-figures.md"
PEERS = ("torchvision", "OpenCV", "ONNX Runtime", "mmcv's way in PyTorch", "PyTorch")


def read(pattern: str) -> list[dict[str, Any]]:
    """Reads the reports that match a pattern, one per processor."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def newest_peers() -> Path:
    """Returns the newest file of benchmarks/peers.py."""
    found = sorted(RESULTS.glob("peers-*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"{RESULTS}: contains no peers-*.json; benchmarks/peers.py writes one")
    return found[-1]


def full_results(peers: Path) -> Path:
    """Returns the file that `detops bench` wrote on the same processor as a peers file."""
    path = peers.with_name(peers.name.removeprefix("peers-"))
    if not path.is_file():
        sys.exit(f"{path}: no such file; `detops bench` writes it on the processor of {peers.name}")
    return path


def heading(report: dict[str, Any]) -> str:
    """Returns a line with the processor and the versions."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return f"{report['device']}; {versions}."


def peers_table(report: dict[str, Any]) -> str:
    """Returns a table of milliseconds per library."""
    lines = [heading(report), "", "| | detops | " + " | ".join(PEERS) + " |"]
    lines.append("|---" * (len(PEERS) + 2) + "|")
    for case, times in report["cases"].items():
        cells = [f"{1e3 * times[name]:.3g}" if name in times else "-" for name in PEERS]
        lines.append(f"| {case} | **{1e3 * times['detops']:.3g}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot_peers(report: dict[str, Any], folder: Path) -> Path:
    """Plots a bar per case: the time of the fastest other library over ours."""
    ratios = {}
    for case, times in report["cases"].items():
        others = {name: time for name, time in times.items() if name != "detops"}
        best = min(others, key=others.__getitem__)
        ratios[f"{case}\nbeside {best}"] = [others[best] / times["detops"]]
    label = "times as fast as the fastest other library that has the op, one thread"
    return bars({"detops": ratios}, folder / "peers.svg", label)


def corners_table(reports: list[dict[str, Any]]) -> str:
    """Returns a row per op, with the lowest, median and highest ratio on each processor."""
    names = [report["device"] for report in reports]
    lines = [*(heading(report) for report in reports), ""]
    lines += ["| op | cases | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    ratios = [corner_ratios(report) for report in reports]
    for op, values in ratios[0].items():
        cells = [
            f"{min(ratio[op]):.2f} to {max(ratio[op]):,.0f}, "
            f"median **{statistics.median(ratio[op]):.1f}**"
            for ratio in ratios
        ]
        lines.append(f"| `{op}` | {len(values)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def corner_ratios(report: dict[str, Any]) -> dict[str, list[float]]:
    """Returns torchvision's time over ours by op and direction; groups tiny calls of other ops."""
    ratios: dict[str, list[float]] = {}
    for row in sorted(report["results"], key=lambda row: row["op"]):
        op, _, direction = row["op"].partition(" ")
        name = row["op"] if direction in ("forward", "backward") else "tiny calls"
        ratios.setdefault(name, []).append(row["ratio"])
    return ratios


def write(docs: Path, folder: Path) -> None:
    """Fills both pages in the folder ``docs``, and writes their plots into ``folder``."""
    newest = newest_peers()
    peers, full = (json.loads(path.read_text()) for path in (newest, full_results(newest)))
    plot_peers(peers, folder)
    corners = read("corners-*.json")
    series = {report["device"]: corner_ratios(report) for report in corners}
    bars(series, folder / "corners.svg", "times as fast as torchvision, one thread")
    machine, results = from_json(full, "cpu")
    plot(results, folder)
    page, figures = docs / PAGE, docs / FIGURES
    text = fill(page.read_text(), "peers", peers_table(peers))
    page.write_text(fill(text, "corners", corners_table(corners)))
    figures.write_text(fill(figures.read_text(), "benchmarks", markdown(machine, results)))


if __name__ == "__main__":
    write(ROOT / "docs", RESULTS)
