"""Counts of the tries of each fault, as JSON and in docs/reliability-figures.md."""

from pathlib import Path

from fuzz.table import add

from detops.marks import fill


def publish(page: Path, tried: dict[str, list[int]]) -> None:
    """Replaces the numbers of earlier runs, in the page and in a file next to it."""
    lines = ["| command | fault | tried | bit | not survived |", "|---|---|---|---|---|"]
    for name, (times, *bit, wrong) in add(page, "faults", tried)["faults"].items():
        command, _, fault = name.partition(": ")
        numbers = times, *(bit or "-"), wrong  # older runs did not count effects
        lines.append(f"| `detops {command}` | {fault} | {' | '.join(map(str, numbers))} |")
    page.write_text(fill(page.read_text(), "faults", "\n".join(lines) + "\n"))
