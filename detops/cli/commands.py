# SPDX-License-Identifier: MIT
"""The commands of `detops`. What they call stands elsewhere, and is imported when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .compat import app as compat_app
from .errors import SOME_FAILED, SomeFailed, UsageError, fail
from .options import (
    DEFAULT_CONFIG,
    DEFAULT_WEIGHTS,
    PACKAGE,
    SHAPES_WEIGHTS,
    TREE_CROWNS,
    ClassMap,
    Device,
    Images,
    NetworkConfig,
    SkipBroken,
    Weights,
)

app = typer.Typer(
    help="Train, evaluate and run detectors on the detops operators.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
)
app.add_typer(compat_app, name="compat")
# Results go to stdout, all else to stderr.
out = Console(soft_wrap=True, highlight=False, markup=False)
err = Console(soft_wrap=True, highlight=False, markup=False, stderr=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        try:
            version = metadata.version("detops")
        except metadata.PackageNotFoundError:  # run from the source tree
            from .. import __version__ as version
        out.print(f"detops {version}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Train, evaluate and run detectors on the detops operators."""


@app.command()
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
            help="Checkpoint to start from (MODEL.WEIGHT). Layers of other classes are left out."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the last checkpoint in --output if there is one."
        ),
    ] = False,
    images: Images = None,
    skip_broken: SkipBroken = False,
    class_map: ClassMap = None,
    half: Annotated[
        bool, typer.Option("--half", help="Write weights.pt in float16, half the size.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the weights, the data's order, the crops.")] = 0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Same seed, same bits; may be slower.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write metrics for TensorBoard too.")
    ] = False,
    device: Device = None,
) -> None:
    r"""Train a detector on COCO, LVIS or Pascal VOC data, or generated shapes.

    Writes checkpoint_000500.pt and so on (to resume from; the last three, and checkpoint.pt, a link
    to the newest), weights.pt (to detect with), metrics.jsonl and results.json, which holds the
    evaluation on DATASETS.TEST; that is done every SOLVER.TEST_PERIOD steps, too.

    Ctrl-C and SIGTERM end training with a checkpoint after the step that is being made; a second
    Ctrl-C ends it at once.

    Under torchrun several processes train together, on one machine or more. With --resume a
    process that dies costs at most SOLVER.CHECKPOINT_PERIOD steps.

    For example:

        detops train --config configs/tree_crowns.yaml --output runs/trees

        detops train --config configs/tree_crowns.yaml --output runs/trees --resume

        detops train --weights runs/trees/weights.pt --output runs/mine \
            DATASETS.TRAIN '[my/train.json]' DATASETS.TEST '[my/val.json]' \
            MODEL.ROI_BOX_HEAD.NUM_CLASSES 4 SOLVER.MAX_ITER 3000

        torchrun --nproc-per-node 2 --max-restarts 3 -m detops train --output runs/trees --resume
    """
    from ..engine.command import train as run_training

    start = [] if weights is None else ["MODEL.WEIGHT", str(weights)]
    cfg = _load_config(config, [*start, *(overrides or [])])
    output = output or _default_output(cfg, config)
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
        class_map=_class_map(class_map),
    )


@app.command("eval")
def evaluate_command(
    weights: Weights = DEFAULT_WEIGHTS,
    data: Annotated[
        Path,
        typer.Option(
            help="JSON file or folder, or shapes:test; see detops.data.open_dataset.",
            show_default="the tree crowns' val.json",
        ),
    ] = TREE_CROWNS / "val.json",
    images: Images = None,
    output: Annotated[Path | None, typer.Option(help="JSON file for the results.")] = None,
    max_detections: Annotated[
        int | None,
        typer.Option(help="Detections counted in an image; enough for all objects by default."),
    ] = None,
    skip_broken: SkipBroken = False,
    config: NetworkConfig = None,
    class_map: ClassMap = None,
    device: Device = None,
) -> None:
    r"""Rate a detector on COCO, LVIS or Pascal VOC data, or generated shapes.

    Under torchrun several processes share the images.

    For example:

        detops eval

        detops eval --weights runs/mine/weights.pt --data my/val.json --output results.json

        detops eval --weights runs/mine/weights.pt --data 'VOC2007?split=test&difficult=use' \
            --class-map tree=oak

        detops eval --weights model_final.pth --config configs/faster_rcnn_R_50_FPN_1x.yaml \
            --data coco/instances_val2017.json

        detops eval --weights trees.onnx
    """
    from ..engine.command import rate

    cfg = _load_config(config)
    rate(
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
        _class_map(class_map),
    )


@app.command()
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

    def make_detector() -> Any:
        return open_detector(weights, _load_config(config), device)

    def complain(problem: str) -> None:
        fail(problem, SOME_FAILED)

    failed, last_error = detect_files(
        make_detector, images, output, json_file, score_threshold, out, err, complain, batch
    )
    if failed:
        raise SomeFailed(f"{failed} of {len(images)} images failed") from last_error


@app.command("export")
def export_command(
    output: Annotated[Path, typer.Option(help="File to write, .pt2 or .onnx.")],
    format: Annotated[
        str, typer.Option(help="pt2 (a graph), onnx, or aoti (compiled, for C++ too).")
    ],
    weights: Weights = DEFAULT_WEIGHTS,
    config: NetworkConfig = None,
    image: Annotated[
        Path,
        typer.Option(
            help="Picture to compare on, with objects in it.",
            show_default="a photograph of trees",
        ),
    ] = TREE_CROWNS / "val.jpg",
    without_resizing: Annotated[
        bool,
        typer.Option("--without-resizing", help="Take images at their size, whatever the config."),
    ] = False,
    int8: Annotated[
        Path | None, typer.Option(help="Compute in 8 bits, as fits these images.")
    ] = None,
) -> None:
    """Write a detector for other runtimes, and compare it with PyTorch on a picture.

    The file takes images of any size and has the names of the classes and the tiling in it: `detops
    detect --weights` needs nothing else. If it finds something else than PyTorch does, that is told
    and the exit status is 1.

    For example:

        detops export --format onnx --output trees.onnx

        detops export --weights runs/trees/weights.pt --format pt2 --output trees.pt2

        detops export --format onnx --output int8.onnx --int8 photographs

        detops export --format aoti --output compiled.pt2
    """
    from ..engine.detect import open_detector
    from ..engine.export import export_detector

    detector = open_detector(weights, _load_config(config), "cpu")
    problem = export_detector(detector, output, format, image, out, not without_resizing, int8)
    if problem:
        raise SomeFailed(problem)


@app.command("demo")
def demo_command(
    output: Annotated[Path, typer.Option(help="Picture to write.")] = Path("demo.png"),
    masks: Annotated[
        bool, typer.Option("--masks", help="Find shapes and their masks instead.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to detect with.", show_default="the one that is shipped"),
    ] = None,
) -> None:
    """Find the trees in a photograph, and time the operators against torchvision's.

    For example:

        detops demo

        detops demo --output trees.png

        detops demo --masks --output shapes.png
    """
    from .. import demo, demo_masks

    if masks:
        demo_masks.run(output, weights or SHAPES_WEIGHTS, out)
    else:
        demo.run(output, weights or DEFAULT_WEIGHTS, out)


@app.command()
def bench(
    ops: Annotated[
        list[str] | None, typer.Argument(metavar="OP", help="Ops to time, all by default.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Folder for a JSON file, a Markdown table and plots.")
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(help="Number of threads, repeatable.", show_default="1 and all"),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A choice of cases, in a minute.")] = False,
    device: Device = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="OP", help="With corners: ops to take, or tiny. Repeatable."),
    ] = None,
) -> None:
    """Time the operators against torchvision's and plain PyTorch.

    `detops bench corners` compares the RoI ops where inputs are unusual, and tiny calls of all ops.

    For example:

        detops bench --quick

        detops bench nms roi_align --threads 1 --output results/

        detops bench corners --only roi_align
    """
    from ..bench.command import run as run_benchmarks

    run_benchmarks(ops or [], output, threads, quick, device, only or [], out, err)


@app.command()
def info() -> None:
    """Show versions, instruction set, threads, CUDA build and device.

    For example:

        detops info
    """
    from ..info import collect

    facts = collect()
    width = max(map(len, facts))
    for title, value in facts.items():
        out.print(f"{title:<{width}}  {value}")


def _load_config(path: Path | None, overrides: Sequence[str] = ()) -> Any:
    from ..config import load_config

    if path is None:
        return None
    # `configs/...` as in the examples, wherever the package is.
    path = next(filter(Path.is_file, (path, PACKAGE / path)), path)
    if not path.is_file():
        raise UsageError(f"{path}: no such config file")
    return load_config(path, overrides)


def _class_map(text: str | None) -> dict[str, str] | None:
    from ..data import read_class_map

    return None if text is None else read_class_map(text)


def _default_output(cfg: Any, config: Path) -> Path:
    return Path("runs") / config.stem if cfg.OUTPUT_DIR in ("", ".") else Path(cfg.OUTPUT_DIR)
