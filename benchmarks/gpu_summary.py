"""Formats GPU results: floors, bandwidth, tests, sanitizer, synchronisation, repeatability."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

BANDWIDTH_FLOOR = 0.8  # fraction of the bandwidth of a copy


@dataclass(frozen=True)
class Floor:
    """Minimum speed-up over torchvision for the cases that match.

    PyTorch is the baseline where torchvision has no such op. ``seconds`` is an absolute limit for
    cases without a baseline.
    """

    name: str
    ratio: float
    op: str  # regular expressions: full op, prefix of the case, full layout and dtype
    case: str = ""
    layout: str = ".*"
    dtype: str = "float32|float16"
    seconds: float = 0.0

    def matches(self, row: dict[str, Any]) -> bool:
        return bool(
            re.fullmatch(self.op, row["op"])
            and re.match(self.case, row["case"])
            and re.fullmatch(self.layout, row["layout"])
            and re.fullmatch(self.dtype, row["dtype"])
        )


ROIS = r"(500|4,096) RoIs 7x7"
OVERLAPS = "(generalized_|distance_|complete_|)box_iou"
FLOORS = (
    Floor("nms, 1,000 boxes", 2, "nms", "1,000 clustered"),
    Floor("nms, 10,000 boxes", 5, "nms", "10,000 (clustered|uniform)"),
    Floor("nms, 100,000 boxes", 20, "nms", "100,000 (clustered|dense)"),
    Floor("nms, half a million boxes", 0, "nms", "500,000 clustered", seconds=0.2),
    Floor("batched_nms, 8,000 x 80", 5, "batched_nms", "8,000 x 80"),
    Floor("roi_align, channels_last", 2, "roi_align forward", ROIS, "channels_last"),
    Floor("roi_align, NCHW", 1.5, "roi_align forward", ROIS, "NCHW"),
    Floor("roi_align backward", 1, "roi_align backward", ROIS),
    Floor("four-level pooler", 2, "multiscale_roi_align (forward|backward)"),
    Floor("deform_conv2d forward", 1.3, "deform_conv2d forward"),
    Floor("deform_conv2d backward", 1.5, "deform_conv2d backward"),
    Floor("ms_deform_attn, grid_sample", 3, "ms_deform_attn (forward|backward)"),
    Floor("focal loss", 2, "(sigmoid|softmax)_focal_loss (forward|both)"),
    Floor("overlaps of boxes", 5, OVERLAPS, "[0-9,]+ x [0-9,]+$"),
    Floor("LLTM, nn.LSTM", 1 / 1.3, "lltm (forward|both)", ".*nn.LSTM$"),
    Floor("LLTM, nn.LSTM without cuDNN", 1, "lltm (forward|both)", ".*without cuDNN"),
)


def has_floors(ops: Iterable[str]) -> bool:
    """Returns whether any op with one of these names or prefixes has a floor."""
    passes = ("", " forward", " backward", " both")
    return any(re.fullmatch(floor.op, op + end) for floor in FLOORS for op in ops for end in passes)


def _yes_or_no(passed: bool) -> str:
    return "yes" if passed else "**no**"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows] + [""]


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "", *lines]


def floors(data: dict[str, Any]) -> list[list[str]]:
    """Returns a row per floor and matching case, or one row for a floor without results."""
    rows = []
    for floor in FLOORS:
        required = f"{floor.seconds:g} s" if floor.seconds else f"{floor.ratio:.2g}x"
        found = [row for row in data["results"] if floor.matches(row)]
        for row in found:
            ours, theirs = row["detops"]["1"], (row["torchvision"] or row["pytorch"]).get("1")
            ratio = theirs / ours if theirs else 0.0
            passed = ours <= floor.seconds if floor.seconds else ratio >= floor.ratio
            rows.append(
                [
                    floor.name,
                    row["op"],
                    row["case"],
                    row["layout"],
                    row["dtype"],
                    f"{theirs * 1e3:.3g}" if theirs else "-",
                    f"{ours * 1e3:.3g}",
                    required,
                    f"{ratio:.2f}x" if theirs else f"{ours:.2g} s",
                    _yes_or_no(passed),
                ]
            )
        if not found:
            rows.append([floor.name, *"-" * 6, required, "not measured", _yes_or_no(False)])
    return rows


def bandwidth(data: dict[str, Any]) -> list[list[str]]:
    """Returns a row per case that should run at memory bandwidth."""
    rows = []
    for row in data["results"]:
        if row.get("bandwidth"):
            fraction = row["bytes"] / row["detops"]["1"] / data["bandwidth_bytes_per_second"]["1"]
            passed = _yes_or_no(fraction >= BANDWIDTH_FLOOR)
            rows.append([row["op"], row["case"], row["dtype"], f"{100 * fraction:.0f}%", passed])
    return rows


def _bench(data: dict[str, Any]) -> list[str]:
    if not data["results"]:
        return []
    head = ["floor", "op", "case", "layout", "dtype", "baseline, ms", "detops, ms", "required"]
    lines = _section("Floors", _table([*head, "measured", ""], floors(data)))
    copy = data["bandwidth_bytes_per_second"]["1"] / 1e9
    bandwidth_lines = [
        f"A copy moves {copy:,.0f} GB/s; the floor is {BANDWIDTH_FLOOR:.0%} of that.",
        "",
    ]
    bandwidth_lines += _table(["op", "case", "dtype", "fraction of a copy", ""], bandwidth(data))
    lines += _section("Bandwidth", bandwidth_lines)
    errors = data["check"].get("bench", {}).get("errors", [])
    if errors:
        rows = [[e["op"], e["case"], e["layout"], e["dtype"], e["error"]] for e in errors]
        table = _table(["op", "case", "layout", "dtype", "error"], rows)
        lines += _section("Benchmarks that failed", table)
    try:
        from detops.bench.report import from_json, markdown
    except ImportError:  # earlier times exist even if the build failed
        return lines
    return lines + _section("All times", [markdown(*from_json(data, "cuda"))])


def _tests(section: dict[str, Any]) -> list[str]:
    files = section["files"].values()
    count = {
        name: sum(f[name] for f in files) for name in ("passed", "failed", "skipped", "on_gpu")
    }
    lines = [
        f"{count['passed']:,} passed, of which {count['on_gpu']:,} on the GPU; "
        f"{count['failed']:,} failed; {count['skipped']:,} skipped.",
        "",
    ]
    reasons: dict[str, int] = {}
    for file in files:
        for reason, n in file["reasons"].items():
            reasons[reason] = reasons.get(reason, 0) + n
    lines += [f"- skipped {n:,}: {reason}" for reason, n in sorted(reasons.items())]
    for name, file in section["files"].items():
        lines += [f"- `{name}` did not finish"] if not file["finished"] else []
        lines += [f"- failed: `{failure}`" for failure in file["failures"]]
    return [*lines, ""]


def _calls(section: dict[str, Any]) -> list[str]:
    calls = section["calls"]
    synchronising = {n: c for n, c in calls.items() if c.get("waits", 0) > c["waits_allowed"]}
    different = [n for n, c in calls.items() if not c.get("repeats", True)]
    failed = {n: c["error"] for n, c in calls.items() if "error" in c}
    runs = max((c.get("runs", 0) for c in calls.values()), default=0)
    allowed = sum(c["waits_allowed"] > 0 for c in calls.values())
    return [
        f"{len(calls)} calls, forward and backward. {allowed} synchronise once to read the size of "
        f"their result; hidden synchronisations: {len(synchronising) or 'none'}.",
        f"Calls whose bits differ in {runs} runs: {len(different) or 'none'}. "
        f"Calls that fail: {len(failed) or 'none'}.",
        "",
        *(f"- synchronises {c['waits']} times: {n}" for n, c in synchronising.items()),
        *(f"- differs: {n}" for n in different),
        *(f"- fails: {n}: {error}" for n, error in failed.items()),
        "",
    ]


def _sanitizer(section: dict[str, Any]) -> list[str]:
    if "missing" in section:
        return [section["missing"], ""]
    rows = []
    for tool, found in section["tools"].items():
        ours = "not finished" if not found["finished"] else str(found["ours"])
        rows.append([tool, ours, str(found["others"]), _yes_or_no(found["passed"])])
    lines = _table(["tool", "in our kernels", "elsewhere", "passed"], rows)
    for tool, found in section["tools"].items():
        lines += [f"- {tool}: `{first}`" for first in found["first"]]
    return [*lines, ""]


def _logs(check: dict[str, Any]) -> list[str]:
    """Returns the last log lines of failed steps."""
    lines = []
    for step, section in check.items():
        if section.get("log"):
            lines += _section(f"Last log lines of {step}", ["```", *section["log"], "```", ""])
    return lines


def summary(data: dict[str, Any]) -> str:
    """Returns the complete summary in Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    rows = [
        [step, _yes_or_no(section["passed"]), f"{section['seconds']:.0f}", section["commit"]]
        for step, section in data["check"].items()
    ]
    lines = [f"# {data['device']}", "", f"{versions}. Written by `make gpu-check`.", ""]
    lines += _table(["step", "passed", "seconds", "commit"], rows)
    for step, title, write in (
        ("tests", "Tests", _tests),
        ("calls", "Synchronisation and repeatability", _calls),
        ("sanitizer", "compute-sanitizer", _sanitizer),
    ):
        section = data["check"].get(step)
        if section is not None:
            lines += _section(title, [section["error"]] if "error" in section else write(section))
    lines += _logs(data["check"])
    return "\n".join([*lines, *_bench(data)]).rstrip() + "\n"
