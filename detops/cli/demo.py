# SPDX-License-Identifier: MIT
"""`detops demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import DEFAULT_WEIGHTS, SHAPES_WEIGHTS


def demo_command(
    output: Annotated[Path, typer.Option(help="Image to write.")] = Path("demo.png"),
    masks: Annotated[
        bool, typer.Option("--masks", help="Find shapes and their masks instead.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to detect with.", show_default="the shipped one"),
    ] = None,
) -> None:
    """Find the trees in a photograph, and time the operators against torchvision.

    For example:

        detops demo

        detops demo --output trees.png

        detops demo --masks --output shapes.png
    """
    from .. import demo, demo_masks
    from .consoles import out

    if masks:
        demo_masks.run(output, weights or SHAPES_WEIGHTS, out)
    else:
        demo.run(output, weights or DEFAULT_WEIGHTS, out)
