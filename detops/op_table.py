# SPDX-License-Identifier: MIT
"""Generates the table of all ops: ``python -m detops.op_table docs/contracts.md``.

The table comes from the contracts. Without a page, it is printed.
"""

import re
import sys
from pathlib import Path

import torch

from .contract import Contract
from .marks import fill, marks
from .registration import CONTRACTS, DIFFERENTIABLE

BEGIN, END = marks("ops")


def _arguments(contract: Contract, formals: str) -> str:
    """Formats arguments with dtype and shape if the contract has them, else with the type."""
    # If an argument has two lines, the first gives the dtype and names the sizes.
    lines = dict(reversed([line.split(": ", 1) for line in contract.tensor_lines]))
    cells = []
    for formal in re.split(r", (?![^\[]*\])", formals):
        kind, name = formal.split(" ", 1)
        name, _, default = name.partition("=")
        text = lines.get(name, kind)
        if name in lines and kind != "Tensor":
            text = f"each {text}" if kind == "Tensor[]" else f"{text} or None"
        cells.append(f"{name}: {text} = {default}" if default else f"{name}: {text}")
    return f"`{', '.join(cells)}`"


def _results(contract: Contract, result: str) -> str:
    if contract.outputs:
        result = ", ".join(contract.output_lines[: max(1, contract.returns)])
    return "written to buffers" if result == "()" else f"`{result}`"


def derivative_kind(op: str) -> str:
    """Returns ``yes``, ``composite`` or ``-``."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    if op in DIFFERENTIABLE:
        return "yes"
    return "composite" if has(f"detops::{op}", "CompositeImplicitAutograd") else "-"


def table() -> str:
    """Returns the table."""
    lines = ["| op | arguments | results | derivative |", "|---|---|---|---|"]
    for op, contract in CONTRACTS.items():
        formals, result = re.fullmatch(r"\w+\((.*)\) -> (.*)", contract.schema).groups()  # type: ignore[union-attr]
        arguments, results = _arguments(contract, formals), _results(contract, result)
        cells = (f"`{op}`", arguments, results, derivative_kind(op))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Writes the table into a page, between its two marks."""
    if len(sys.argv) < 2:
        print(table(), end="")
        return
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text(), "ops", table()))


if __name__ == "__main__":
    main()
