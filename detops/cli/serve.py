# SPDX-License-Identifier: MIT
"""`detops serve`: detectors on a local web page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import UsageError
from .options import DEFAULT_WEIGHTS, SHAPES_WEIGHTS, Device, load_config_file


def serve(
    weights: Annotated[
        list[Path] | None,
        typer.Option(
            help="Checkpoint to detect with, repeatable.",
            show_default="the tree-crown and the shapes detector",
        ),
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option(
            help="Config of the network, for weights of other packages: one for all, or one for "
            "each --weights in their order."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 selects a free one.")] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another host name that requests may use, repeatable."),
    ] = None,
    max_megabytes: Annotated[
        int, typer.Option(min=1, max=1024, help="Largest accepted file.")
    ] = 20,
    max_megapixels: Annotated[
        int, typer.Option(min=1, max=1000, help="Largest accepted image.")
    ] = 16,
    score_floor: Annotated[
        float, typer.Option(min=0, max=1, help="Lowest score that is sent to the page.")
    ] = 0.05,
    device: Device = None,
) -> None:
    r"""Serve a local web page: drop a photograph on it and see the detections.

    The page can change the threshold without detecting again, compare two detectors, and save the
    detections. A second tab shows what the ops do. Only this machine can reach the page unless
    --host allows others, and the page loads nothing from the network. Ctrl-C stops the server.

    For example:

        detops serve

        detops serve --weights runs/trees/weights.pt \
            --weights runs/mine/weights.pt

        detops serve --weights maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth \
            --config configs/torchvision_mask_rcnn_R_50_FPN.yaml --port 8080
    """
    try:
        from ..serve import Limits
        from ..serve.command import serve as run_server
        from ..serve.command import unique_names
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("anyio", "starlette", "uvicorn"):
            raise
        raise ImportError(
            f"detops serve requires {missing}, which is not installed: pip install 'detops[serve]'"
        ) from error
    from ..engine.detect import open_detector
    from .consoles import err, out

    files = weights or [DEFAULT_WEIGHTS, SHAPES_WEIGHTS]
    configs: Sequence[Path | None] = config or (None,)
    if len(configs) not in (1, len(files)):
        raise UsageError(
            f"--config: expected one for all, or one for each of the {len(files)} --weights, got "
            f"{len(configs)}"
        )
    if len(configs) == 1:
        configs = [configs[0]] * len(files)

    def make_detectors() -> dict[str, Any]:
        opened = zip(unique_names(files), files, configs, strict=True)
        return {n: open_detector(file, load_config_file(c), device) for n, file, c in opened}

    limits = Limits(max_megabytes * 10**6, max_megapixels * 10**6, score_floor=score_floor)
    run_server(make_detectors, host, port, allow_host or [], limits, out, err)
