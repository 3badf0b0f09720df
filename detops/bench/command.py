# SPDX-License-Identifier: MIT
"""The `detops bench` command."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from rich.console import Console

from ..device import choose_device
from ..marks import fill, marks
from . import corner_report
from .report import markdown, plot, to_json
from .run import MODULES, all_cases, measure, measure_machine

BEGIN, END = marks("benchmarks")
WORKING_ON = "{op}, {name} {layout} {dtype}"


def run(
    ops: list[str],
    output: Path | None,
    readme: Path | None,
    threads: list[int] | None,
    quick: bool,
    device: str | None,
    only: list[str],
    console: Console,
    messages: Console,
) -> None:
    """Times the ops, prints the table, and writes what was asked for.

    Args:
        ops: beginnings of op names; all without any.
        output: folder for ``<device>.json``, ``<device>.md`` and the plots.
        readme: file whose part between the marks becomes the table.
        threads: numbers of threads, one and all by default; on a GPU there is only one row.
        quick: a choice of cases.
        device: where to run.
        only: with the op ``corners``, beginnings of the names of ops whose corners are measured.
        console: for the table.
        messages: for progress.

    Raises:
        ValueError: an unknown op, a readme without marks, or an option that corners do not have.
        ImportError: no torchvision to compare with.
    """
    place = choose_device(device or "cpu")
    if ops == ["corners"]:
        if readme or threads or quick or place.type != "cpu":
            raise ValueError("corners are measured on one thread of the CPU: only --only, --output")
        return corner_report.run(only, output, console, messages)
    if only:
        raise ValueError("--only goes with detops bench corners; name the ops instead")
    text = None
    if readme is not None:
        text = readme.read_text()
        if BEGIN not in text or END not in text:
            raise ValueError(f"{readme}: no {BEGIN} and {END} to put the table between")
    counts = sorted(set(threads or [1, torch.get_num_threads()]))
    if min(counts) < 1:
        raise ValueError(f"--threads must be at least 1, got {min(counts)}")
    if place.type == "cuda":
        counts = counts[:1]
    machine = measure_machine(place, counts)
    results = []
    for case in all_cases(place, ops, quick):
        messages.print(WORKING_ON.format(**vars(case)).replace("  ", " "))
        results.append(measure(case, counts))
    if not results:
        known = ", ".join(module.__name__.rpartition(".")[2] for module in MODULES)
        raise ValueError(f"no benchmark of {', '.join(ops)}; there are those of {known}")
    table = markdown(machine, results)
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        stem = re.sub(r"[^a-z0-9]+", "-", machine.name.lower()).strip("-")
        (output / f"{stem}.json").write_text(json.dumps(to_json(machine, results), indent=1) + "\n")
        (output / f"{stem}.md").write_text(table)
        try:
            plot(results, output)
        except ImportError as error:
            messages.print(f"no plots: {error}")
    if readme is not None and text is not None:
        readme.write_text(fill(text, "benchmarks", table))
