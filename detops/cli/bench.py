# SPDX-License-Identifier: MIT
"""`detops bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Device


def bench(
    ops: Annotated[
        list[str] | None,
        typer.Argument(metavar="OP", help="Ops to time, polygons or demo_ops; all by default."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for a JSON file, a Markdown table and plots.")
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(help="Number of threads, repeatable.", show_default="1 and all"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A selection of cases, in a minute.")
    ] = False,
    device: Device = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="With corners: ops to time, or tiny. Repeatable."),
    ] = None,
) -> None:
    """Time the operators against torchvision and plain PyTorch.

    `detops bench corners` compares the RoI ops on unusual inputs, and tiny calls of all ops.

    For example:

        detops bench --quick

        detops bench nms roi_align --threads 1 --output results/

        detops bench corners --only roi_align
    """
    from ..bench.command import run as run_benchmarks
    from .consoles import err, out

    run_benchmarks(ops or [], output, threads, quick, device, only or [], out, err)
