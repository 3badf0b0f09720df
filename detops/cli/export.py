# SPDX-License-Identifier: MIT
"""`detops export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import PartialFailure
from .options import DEFAULT_WEIGHTS, TREE_CROWNS, NetworkConfig, Weights, load_config_file


def export_command(
    output: Annotated[Path, typer.Option(help="File to write, .pt2 or .onnx.")],
    format: Annotated[
        str, typer.Option(help="pt2 (a graph), onnx, or aoti (compiled, also for C++).")
    ],
    weights: Weights = DEFAULT_WEIGHTS,
    config: NetworkConfig = None,
    image: Annotated[
        Path,
        typer.Option(
            help="Image with objects, to compare the result on.",
            show_default="a photograph of trees",
        ),
    ] = TREE_CROWNS / "val.jpg",
    without_resizing: Annotated[
        bool,
        typer.Option("--without-resizing", help="Do not resize images, whatever the config."),
    ] = False,
    int8: Annotated[
        Path | None, typer.Option(help="Quantize to 8 bits, calibrated on these images.")
    ] = None,
) -> None:
    r"""Export a detector to another runtime, and compare it with PyTorch on an image.

    The file accepts images of any size, and it contains the class names and the tiling. `detops
    detect --weights` needs nothing else. If its detections differ from those of PyTorch, the
    command reports it, and the exit status is 1.

    For example:

        detops export --format onnx --output trees.onnx

        detops export --weights runs/trees/weights.pt --format pt2 \
            --output trees.pt2

        detops export --format onnx --output int8.onnx --int8 photographs

        detops export --format aoti --output compiled.pt2
    """
    from ..engine.detect import open_detector
    from ..engine.export import export_detector
    from .consoles import out

    detector = open_detector(weights, load_config_file(config), "cpu")
    problem = export_detector(detector, output, format, image, out, not without_resizing, int8)
    if problem:
        raise PartialFailure(problem)
