# SPDX-License-Identifier: MIT
"""The `detops bench` command."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console

from ..device import choose_device
from . import corner_report
from .report import file_stem, markdown, plot, to_json
from .run import MODULES, all_cases, has_cases, measure, measure_machine, module_name

WORKING_ON = "{op}, {name} {layout} {dtype}"


def _no_benchmark(ops: list[str]) -> ValueError:
    known = ", ".join(map(module_name, MODULES))
    return ValueError(f"no benchmark of {', '.join(ops)}; expected one of {known}")


def run(
    ops: list[str],
    output: Path | None,
    threads: list[int] | None,
    quick: bool,
    device: str | None,
    only: list[str],
    console: Console,
    messages: Console,
) -> None:
    """Times the ops, prints the table, and writes the requested files.

    Args:
        ops: prefixes of op names, or names of benchmark modules; empty for all.
        output: folder for ``<device>.json``, ``<device>.md`` and the plots.
        threads: thread counts, by default one and the maximum; a GPU uses only the smallest.
        quick: run a subset of the cases.
        device: the device to run on.
        only: with the op ``corners``, prefixes of the names of the ops to measure.
        console: console for the table.
        messages: console for progress.

    Raises:
        ValueError: an unknown op, or an option that corners do not support.
        ImportError: torchvision is missing.
    """
    torch_device = choose_device(device or "cpu")
    if ops == ["corners"]:
        if threads or quick or torch_device.type != "cpu":
            raise ValueError(
                "corners are measured on one CPU thread; expected no option but --only and --output"
            )
        return corner_report.run(only, output, console, messages)
    if only:
        raise ValueError("--only requires detops bench corners; name the ops instead")
    counts = sorted(set(threads or [1, torch.get_num_threads()]))
    if min(counts) < 1:
        raise ValueError(f"--threads must be at least 1, got {min(counts)}")
    if torch_device.type == "cuda":
        counts = counts[:1]
    unknown = [op for op in ops if not any(has_cases(module, op) for module in MODULES)]
    if unknown:
        raise _no_benchmark(unknown)
    machine = measure_machine(torch_device, counts)
    results = []
    for case in all_cases(torch_device, ops, quick):
        messages.print(WORKING_ON.format(**vars(case)).replace("  ", " "))
        results.append(measure(case, counts))
    if not results:
        raise _no_benchmark(ops)
    table = markdown(machine, results)
    console.print(table)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        stem = file_stem(machine)
        (output / f"{stem}.json").write_text(json.dumps(to_json(machine, results), indent=1) + "\n")
        (output / f"{stem}.md").write_text(table)
        try:
            plot(results, output)
        except ImportError as error:
            messages.print(f"no plots: {error}")
