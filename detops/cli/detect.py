# SPDX-License-Identifier: MIT
"""`detops detect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .errors import SOME_FAILED, SomeFailed, fail
from .options import DEFAULT_WEIGHTS, Device, NetworkConfig, Weights, read_config


def detect(
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    weights: Weights = DEFAULT_WEIGHTS,
    output: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("detections"),
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Also write boxes, masks (RLE), keypoints to this file."),
    ] = None,
    score_threshold: Annotated[
        float, typer.Option(min=0, max=1, help="Leave out detections below.")
    ] = 0.5,
    batch: Annotated[
        int, typer.Option(min=1, help="Images at a time; those of one size go together.")
    ] = 1,
    config: NetworkConfig = None,
    device: Device = None,
) -> None:
    """Detect objects in images, and draw them.

    The tree-crown detector looks for trees in aerial photographs, and for nothing else. An image
    that cannot be read is told of, and the others are worked on; the exit status is then 1.

    For example:

        detops detect photo.jpg

        detops detect *.jpg --weights runs/trees/weights.pt --output found --json found.json

        detops detect *.jpg --weights maskrcnn_resnet50_fpn_coco-bf2d0c1e.pth \
            --config configs/torchvision_mask_rcnn_R_50_FPN.yaml

        detops detect *.jpg --weights model_final_f10217.pkl \
            --config configs/detectron2_mask_rcnn_R_50_FPN.yaml

        detops detect *.jpg --weights trees.onnx

        detops detect frames/*.jpg --batch 4
    """
    from ..engine.detect import open_detector
    from ..engine.detect_files import detect_files
    from .consoles import err, out

    def make_detector() -> Any:
        return open_detector(weights, read_config(config), device)

    def complain(problem: str) -> None:
        fail(problem, SOME_FAILED)

    failed, last_error = detect_files(
        make_detector, images, output, json_file, score_threshold, out, err, complain, batch
    )
    if failed:
        raise SomeFailed(f"{failed} of {len(images)} images failed") from last_error
