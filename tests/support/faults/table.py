"""Counts of the tries of each fault, as JSON and in docs/reliability-figures.md."""

from pathlib import Path

from fuzz.table import add

from detops.marks import fill


def publish(page: Path, counts: dict[str, list[int]]) -> None:
    """Replaces the numbers of earlier runs, in the page and in a file next to it."""
    lines = ["| command | fault | tries | took effect | failed |", "|---|---|---|---|---|"]
    for name, (tries, *took_effect, failed) in add(page, "faults", counts)["faults"].items():
        command, _, fault = name.partition(": ")
        columns = tries, *(took_effect or "-"), failed  # older runs did not count effects
        lines.append(f"| `detops {command}` | {fault} | {' | '.join(map(str, columns))} |")
    page.write_text(fill(page.read_text(), "faults", "\n".join(lines) + "\n"))
