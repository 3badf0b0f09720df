"""Times the cases of detops.bench modules on a GPU, and saves each result immediately.

python benchmarks/gpu_bench.py nms,roi_align build/gpu_check/bench.json --seconds 100
"""

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from detops.bench import run
from detops.bench.case import Case
from detops.bench.report import to_json
from detops.bench.run import Machine, measure, measure_machine

KEY = ("op", "case", "layout", "dtype")


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """Returns the fields that identify a row of results."""
    return tuple(row[name] for name in KEY)


def measure_row(case: Case, machine: Machine) -> dict[str, Any]:
    """Returns the times of a case in the format of ``detops bench``, or its ``error``."""
    names = dict(op=case.op, case=case.name, layout=case.layout, dtype=case.dtype)
    try:
        result = measure(case, [1])
    except (RuntimeError, NotImplementedError) as error:
        return names | {"error": str(error).splitlines()[0]}
    return to_json(machine, [result])["results"][0]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", help="comma-separated modules of detops.bench")
    parser.add_argument("output", type=Path)
    parser.add_argument("--done", type=Path, help="results whose cases are skipped")
    parser.add_argument("--seconds", type=float, default=3600, help="start no case after this time")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    device = torch.device(options.device)
    if device.type == "cuda":  # no other process uses it, and its time is expensive
        run.MIN_SECONDS, run.WARM_UP_SECONDS, run.MAX_TRIES = 0.05, 0.03, 2
    machine = measure_machine(device, [1])
    done = json.loads(options.done.read_text())["results"] if options.done else []
    skipped = {key(row) for row in done}
    data: dict[str, Any] = to_json(machine, []) | {"finished": []}
    for module in options.modules.split(","):
        options.output.write_text(json.dumps(data) + "\n")
        for case in importlib.import_module(f"detops.bench.{module}").cases(device):
            if (case.op, case.name, case.layout, case.dtype) in skipped:
                continue
            if time.monotonic() - began > options.seconds:
                return
            data["results"].append(measure_row(case, machine))
            options.output.write_text(json.dumps(data) + "\n")
        data["finished"].append(module)
    options.output.write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
