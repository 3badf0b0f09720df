"""How often each fault was tried, as JSON and in docs/reliability.md."""

import json
from pathlib import Path

from detops.marks import fill


def publish(page: Path, tried: dict[str, list[int]]) -> None:
    """Writes a run's numbers, in place of earlier ones, beside the page and into it."""
    path = page.with_suffix(".json")
    runs = json.loads(path.read_text()) if path.exists() else {}
    runs["faults"] = runs.get("faults", {}) | tried
    path.write_text(json.dumps(runs) + "\n")
    lines = ["| command | fault | tried | not survived |", "|---|---|---|---|"]
    for name, (times, wrong) in runs["faults"].items():
        command, _, fault = name.partition(": ")
        lines.append(f"| `detops {command}` | {fault} | {times} | {wrong} |")
    page.write_text(fill(page.read_text(), "faults", "\n".join(lines) + "\n"))
