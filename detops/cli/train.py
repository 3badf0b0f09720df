# SPDX-License-Identifier: MIT
"""`detops train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    DEFAULT_CONFIG,
    ClassMap,
    Device,
    Images,
    SkipBroken,
    load_config_file,
    parse_class_map,
)


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY VALUE", help="Config keys and their values."),
    ] = None,
    config: Annotated[
        Path, typer.Option(help="Config, a YAML file.", show_default="tree_crowns.yaml")
    ] = DEFAULT_CONFIG,
    output: Annotated[Path | None, typer.Option(help="Folder for the results.")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Checkpoint to start from (MODEL.WEIGHT), or torchvision/NAME. Layers of other "
            "classes are skipped."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the last checkpoint in --output, if any."),
    ] = False,
    images: Images = None,
    skip_broken: SkipBroken = False,
    class_map: ClassMap = None,
    half: Annotated[
        bool, typer.Option("--half", help="Write weights.pt in float16, at half the size.")
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seed of the weights, the order of the data and the crops.")
    ] = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="The same seed gives the same bits; may be slower."),
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write metrics for TensorBoard.")
    ] = False,
    device: Device = None,
) -> None:
    r"""Train a detector on COCO, LVIS, VOC, YOLO, CVAT or Label Studio data, or on shapes.

    Writes checkpoint_000500.pt and so on to resume from (the last three, and checkpoint.pt, a link
    to the newest), weights.pt to detect with, metrics.jsonl, results.json with the evaluation on
    DATASETS.TEST, results.png and plots. The evaluation also runs every SOLVER.TEST_PERIOD steps.
    best.pt has the weights with the highest AP, and training stops after SOLVER.PATIENCE
    evaluations without a higher one.

    Ctrl-C and SIGTERM stop training after the current step, with a checkpoint. A second Ctrl-C
    stops it at once.

    Under torchrun, several processes train together, on one machine or more. With --resume, a
    process that dies costs at most SOLVER.CHECKPOINT_PERIOD steps.

    For example:

        detops train --config configs/tree_crowns.yaml --output runs/trees

        detops train --config configs/tree_crowns.yaml \
            --output runs/trees --resume

        detops train --weights runs/trees/weights.pt --output runs/mine \
            DATASETS.TRAIN '[my/train.json]' DATASETS.TEST '[my/val.json]' \
            MODEL.ROI_BOX_HEAD.NUM_CLASSES 4 SOLVER.MAX_ITER 3000

        torchrun --nproc-per-node 2 --max-restarts 3 -m detops train \
            --output runs/trees --resume
    """
    from ..engine.command import train as run_training
    from .consoles import err, out

    start = [] if weights is None else ["MODEL.WEIGHT", str(weights)]
    cfg = load_config_file(config, [*start, *(overrides or [])])
    if output is None:
        named = cfg.OUTPUT_DIR not in ("", ".")
        output = Path(cfg.OUTPUT_DIR) if named else Path("runs") / config.stem
    run_training(
        cfg,
        output,
        out,
        err,
        images=images,
        skip_broken=skip_broken,
        resume=resume,
        half=half,
        seed=seed,
        deterministic=deterministic,
        tensorboard=tensorboard,
        device=device,
        class_map=parse_class_map(class_map),
    )
