"""Writes the plots and tables of docs/performance.md from what is in benchmarks/results.

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
PAGE = ROOT / "docs" / "performance.md"
PEERS = ("torchvision", "OpenCV", "ONNX Runtime", "mmcv's way in PyTorch", "PyTorch")


def read(pattern: str) -> list[dict[str, Any]]:
    """The reports of one kind, of each processor."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def newest_peers() -> Path:
    """The file that benchmarks/peers.py wrote last."""
    found = sorted(RESULTS.glob("peers-*.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        sys.exit(f"{RESULTS}: has no peers-*.json, which benchmarks/peers.py writes")
    return found[-1]


def full_results(peers: Path) -> Path:
    """What `detops bench` wrote on the processor of a file of peers."""
    path = peers.with_name(peers.name.removeprefix("peers-"))
    if not path.is_file():
        sys.exit(f"{path}: no such file; `detops bench` writes it on the processor of {peers.name}")
    return path


def heading(report: dict[str, Any]) -> str:
    """The processor, and the versions that were timed."""
    versions = ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    return f"{report['device']}; {versions}."


def peers_table(report: dict[str, Any]) -> str:
    """Milliseconds of each library."""
    lines = [heading(report), "", "| | detops | " + " | ".join(PEERS) + " |"]
    lines.append("|---" * (len(PEERS) + 2) + "|")
    for case, times in report["cases"].items():
        cells = [f"{1e3 * times[name]:.3g}" if name in times else "-" for name in PEERS]
        lines.append(f"| {case} | **{1e3 * times['detops']:.3g}** | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def plot_peers(report: dict[str, Any], folder: Path) -> Path:
    """A bar per case: the time of the fastest other library over ours."""
    ratios = {}
    for case, times in report["cases"].items():
        others = {name: time for name, time in times.items() if name != "detops"}
        best = min(others, key=others.__getitem__)
        ratios[f"{case}\nbeside {best}"] = [others[best] / times["detops"]]
    label = "times as fast as the fastest other library that has the op, one thread"
    return bars({"detops": ratios}, folder / "peers.svg", label)


def corners_table(reports: list[dict[str, Any]]) -> str:
    """A row per op: of each processor the least, the median and the greatest ratio."""
    names = [report["device"] for report in reports]
    lines = [*(heading(report) for report in reports), ""]
    lines += ["| op | cases | " + " | ".join(names) + " |", "|---" * (len(names) + 2) + "|"]
    ratios = [corner_ratios(report) for report in reports]
    for op, values in ratios[0].items():
        cells = [
            f"{min(of[op]):.2f} to {max(of[op]):,.0f}, median **{statistics.median(of[op]):.1f}**"
            for of in ratios
        ]
        lines.append(f"| `{op}` | {len(values)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def corner_ratios(report: dict[str, Any]) -> dict[str, list[float]]:
    """Torchvision's time over ours, by op and direction; tiny calls of other ops are one."""
    ratios: dict[str, list[float]] = {}
    for row in sorted(report["results"], key=lambda row: row["op"]):
        op, _, direction = row["op"].partition(" ")
        name = row["op"] if direction in ("forward", "backward") else "tiny calls"
        ratios.setdefault(name, []).append(row["ratio"])
    return ratios


def write(page: Path, folder: Path) -> None:
    """Fills the page, and writes its plots into a folder."""
    text = page.read_text()
    newest = newest_peers()
    peers, full = (json.loads(path.read_text()) for path in (newest, full_results(newest)))
    plot_peers(peers, folder)
    text = fill(text, "peers", peers_table(peers))
    corners = read("corners-*.json")
    series = {report["device"]: corner_ratios(report) for report in corners}
    bars(series, folder / "corners.svg", "times as fast as torchvision, one thread")
    text = fill(text, "corners", corners_table(corners))
    machine, results = from_json(full, "cpu")
    plot(results, folder)
    page.write_text(fill(text, "benchmarks", markdown(machine, results)))


if __name__ == "__main__":
    write(PAGE, RESULTS)
