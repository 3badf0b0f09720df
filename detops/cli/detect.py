# SPDX-License-Identifier: MIT
"""`detops detect`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from .errors import PARTIAL_FAILURE, PartialFailure, fail
from .options import DEFAULT_WEIGHTS, Device, NetworkConfig, Weights, load_config_file


def detect(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...",
            help="Images, videos, folders, patterns, lists of paths (.txt), cameras, streams; - "
            "for an image or a list on standard input.",
        ),
    ],
    weights: Weights = DEFAULT_WEIGHTS,
    output: Annotated[
        Path, typer.Option(help="Folder for the drawn images and detections.jsonl.")
    ] = Path("detections"),
    without_pictures: Annotated[
        bool, typer.Option("--without-pictures", help="Do not draw images.")
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write boxes, masks (RLE) and keypoints to this file."),
    ] = None,
    coco: Annotated[Path | None, typer.Option(help="Also write the COCO results format.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write a table of the boxes.")] = None,
    yolo: Annotated[
        Path | None, typer.Option(help="Folder for YOLO text files, one per image.")
    ] = None,
    crops: Annotated[
        Path | None, typer.Option(help="Folder for an image of each detection.")
    ] = None,
    score_threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Drop detections with a lower score.")
    ] = 0.5,
    classes: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Keep detections of these classes only.")
    ] = None,
    line_width: Annotated[
        float | None, typer.Option(min=0.5, max=100, help="Line width of the boxes, in pixels.")
    ] = None,
    without_tags: Annotated[
        bool, typer.Option("--without-tags", help="Do not draw names and scores.")
    ] = False,
    batch: Annotated[
        int, typer.Option(min=1, help="Images per batch; a batch has images of one size.")
    ] = 1,
    resume: Annotated[
        bool, typer.Option("--resume", help="Skip inputs that already have results in --output.")
    ] = False,
    config: NetworkConfig = None,
    device: Device = None,
) -> None:
    r"""Detect objects in images and videos, and draw them.

    The default detector finds only tree crowns in aerial photographs; `detops weights` lists
    others. An image that cannot be read is reported and skipped. The exit status is then 1.

    Under torchrun, several processes share the images; the results are the same as with one. With
    --resume, a run that was killed continues with the images that it had not finished.

    For example:

        detops detect photo.jpg

        detops detect photographs 'more/**/*.png' --json found.json \
            --csv found.csv

        detops detect street.jpg \
            --weights torchvision/maskrcnn_resnet50_fpn_v2 --classes person,car

        detops detect clip.mp4 /dev/video0 \
            --weights runs/trees/weights.pt --output found

        find photographs -name '*.jpg' | detops detect - \
            --without-pictures --coco found.json

        torchrun --nproc-per-node 2 -m detops detect photographs \
            --batch 4 --resume

        detops detect *.jpg --weights maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth \
            --config configs/torchvision_mask_rcnn_R_50_FPN.yaml

        detops detect *.jpg --weights model_final_f10217.pkl \
            --config configs/detectron2_mask_rcnn_R_50_FPN.yaml

        detops detect *.jpg --weights trees.onnx
    """
    from ..distributed import on_main
    from ..engine.checkpoint import list_some
    from ..engine.command import locked, process_group
    from ..engine.detect import Detector, open_detector
    from ..engine.detect_files import Options, detect_files
    from ..engine.run_folder import RunFolder
    from ..engine.sources import list_sources
    from .consoles import err, out

    tables = {"json": json_file, "coco": coco, "csv": csv}
    options = Options(
        output,
        draw_images=not without_pictures,
        tables={kind: path for kind, path in tables.items() if path is not None},
        yolo=yolo,
        crops=crops,
        score_threshold=score_threshold,
        classes=[] if classes is None else [name.strip() for name in classes.split(",")],
        batch=batch,
        resume=resume,
        draw_options={"line_width": line_width, "tags": not without_tags},
    )

    def report_failure(problem: str) -> None:
        fail(problem, PARTIAL_FAILURE)

    with process_group(device, err) as torch_device, locked(RunFolder(output)):

        def make_detector() -> Detector:
            detector = open_detector(
                weights, load_config_file(config), torch_device if device else None
            )
            what = list_some(detector.names, ", ")
            if weights == DEFAULT_WEIGHTS:
                what = "tree crowns in aerial photographs; `detops weights` lists other detectors"
            err.print(f"detecting {what}")
            return detector

        sources, problems = on_main(lambda: list_sources(inputs, sys.stdin.buffer))
        failed, count, last_error = detect_files(
            make_detector, str(weights), sources, problems, options, out, err, report_failure
        )
    if failed:
        raise PartialFailure(f"{failed} of {count} images failed") from last_error
