"""Counts of cases per op, as JSON and in docs/reliability-figures.md."""

import json
from pathlib import Path
from typing import Any

from detops.marks import fill

PLAIN, UNDER_SANITIZERS, FILES = "plain", "sanitized", "files"


def table(runs: dict[str, Any]) -> str:
    """Formats a row per op: cases, the fraction accepted, and cases under sanitizers."""
    plain, sanitized = (runs.get(kind, {}) for kind in (PLAIN, UNDER_SANITIZERS))
    lines = ["| op | cases | accepted | under sanitizers |", "|---|---|---|---|"]

    def row(name: str, cases: int, accepted: int, sanitized_cases: int) -> str:
        return f"| {name} | {cases:,} | {accepted / max(cases, 1):.0%} | {sanitized_cases:,} |"

    for name in sorted({*plain, *sanitized}):
        cases, accepted = plain.get(name, [0, 0])
        lines.append(row(f"`{name}`", cases, accepted, sanitized.get(name, [0, 0])[0]))
    totals = [sum(column) for column in zip(*plain.values(), strict=True)] or [0, 0]
    lines.append(row("all", *totals, sum(cases for cases, _ in sanitized.values())))
    return "\n".join(lines) + "\n"


def files_table(runs: dict[str, Any]) -> str:
    """Formats a row per loader: files, and the fraction accepted."""
    found = runs.get(FILES, {})
    totals = [sum(column) for column in zip(*found.values(), strict=True)] or [0, 0]
    lines = ["| loader | files | accepted |", "|---|---|---|"]
    for name, (cases, accepted) in [*found.items(), ("all", totals)]:
        lines.append(f"| {name} | {cases:,} | {accepted / max(cases, 1):.0%} |")
    return "\n".join(lines) + "\n"


def add(
    page: Path, kind: str, counts: dict[str, list[int]], accumulate: bool = False
) -> dict[str, Any]:
    """Writes a run's counts next to the page; replaces earlier ones, or adds to them."""
    path = page.with_suffix(".json")
    runs = json.loads(path.read_text()) if path.exists() else {}
    before = runs.get(kind, {})
    if accumulate:
        zeros = [0, 0]
        counts = {
            name: [a + b for a, b in zip(before.get(name, zeros), new, strict=True)]
            for name, new in counts.items()
        }
    runs[kind] = dict(sorted((before | counts).items()))
    path.write_text(json.dumps(runs) + "\n")
    return runs


def publish(page: Path, counts: dict[str, list[int]], kind: str, accumulate: bool = False) -> None:
    """Writes a run's counts next to the page and into it; see `add`."""
    runs = add(page, kind, counts, accumulate)
    text = fill(page.read_text(), "cases", table(runs))
    page.write_text(fill(text, "files", files_table(runs)))
