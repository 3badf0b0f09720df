# SPDX-License-Identifier: MIT
"""`detops eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    DEFAULT_WEIGHTS,
    TREE_CROWNS,
    ClassMap,
    Device,
    Images,
    NetworkConfig,
    SkipBroken,
    Weights,
    load_config_file,
    parse_class_map,
)


def evaluate_command(
    weights: Weights = DEFAULT_WEIGHTS,
    data: Annotated[
        Path,
        typer.Option(
            help="JSON file or folder, or shapes:test; see detops.data.open_dataset.",
            show_default="val.json of the tree crowns",
        ),
    ] = TREE_CROWNS / "val.json",
    images: Images = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    max_detections: Annotated[
        int | None,
        typer.Option(help="Detections counted per image; by default, enough for all objects."),
    ] = None,
    skip_broken: SkipBroken = False,
    config: NetworkConfig = None,
    class_map: ClassMap = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for curves, confusion matrix and compared detections."),
    ] = None,
    device: Device = None,
) -> None:
    r"""Evaluate a detector on COCO, LVIS, VOC, YOLO, CVAT or Label Studio data, or on shapes.

    Under torchrun, several processes share the images.

    For example:

        detops eval

        detops eval --weights runs/mine/weights.pt --data my/val.json \
            --output results.json

        detops eval --weights runs/mine/weights.pt \
            --data 'VOC2007?split=test&difficult=use' --class-map tree=oak

        detops eval --weights model_final.pth \
            --config configs/faster_rcnn_R_50_FPN_1x.yaml \
            --data coco/instances_val2017.json

        detops eval --weights trees.onnx
    """
    from ..engine.command import evaluate_detector
    from .consoles import err, out

    cfg = load_config_file(config)
    evaluate_detector(
        weights,
        data,
        out,
        err,
        images,
        output,
        max_detections,
        skip_broken,
        device,
        cfg,
        parse_class_map(class_map),
        plots,
    )
