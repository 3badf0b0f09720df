"""Compares detectors in 8 bits with float32: average precision, and time in each runtime.

python benchmarks/int8.py --page docs/export.md

Precision is that of the shipped detectors, on images used neither for the weights nor for the
quantization scales. Times are median CPU seconds of Mask R-CNN (R50-FPN) on noise of 800 x 1333
pixels on one thread. The files run in turn, and the first round is ignored. The weights are random.
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from detectors import (
    CONFIG_NAMES,
    MASK,
    RUNTIMES,
    detector,
    detops_detector,
    median_times,
    noise_image,
    write_onnx,
)
from PIL import Image

from detops import cli, export
from detops.bench.run import describe_machine
from detops.cli.options import TREE_CROWNS
from detops.data.shapes import Shapes
from detops.marks import fill

SHAPES = TREE_CROWNS.parent / "shapes"
IMAGES = 24  # calibration images for the shapes detector


def run_detops(*arguments: object) -> None:
    """Runs a detops command, which must succeed."""
    if cli.main([str(word) for word in arguments]) != 0:
        raise RuntimeError(f"detops {' '.join(map(str, arguments))} failed")


def precision(weights: Path, data: str, folder: Path) -> list[float]:
    """Returns the AP50 of boxes and, if there are any, of masks."""
    file = folder / "metrics.json"
    run_detops("eval", "--weights", weights, "--data", data, "--output", file)
    metrics = json.loads(file.read_text())
    return [metrics["AP50"]] + ([metrics["segm"]["AP50"]] if "segm" in metrics else [])


def compare_precision(
    weights: Path, images: Path, data: str, folder: Path
) -> list[tuple[float, float]]:
    """Returns the precision of a detector in float32 and in 8 bits."""
    file = folder / "int8.onnx"
    options = ("--weights", weights, "--format", "onnx", "--output", file, "--int8", images)
    run_detops("export", *options)
    float32, int8 = (precision(x, data, folder) for x in (weights, file))
    return list(zip(float32, int8, strict=True))


def times(folder: Path, repeats: int) -> dict[str, tuple[float, float]]:
    """Returns CPU seconds per image in each runtime, in float32 and in 8 bits."""
    torch.set_num_threads(1)
    source, quantized = folder / "float32.onnx", folder / "quantized.onnx"
    write_onnx(detops_detector(detector(MASK), CONFIG_NAMES[MASK]).eval(), source)
    export.quantize(source, quantized, [noise_image()])
    runs = {
        f"{runtime} {file.stem}": make(file, 1)
        for runtime, make in RUNTIMES.items()
        for file in (source, quantized)
    }
    found = {name: row["cpu"] for name, row in median_times(runs, repeats).items()}
    return {r: (found[f"{r} float32"], found[f"{r} quantized"]) for r in RUNTIMES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--page", type=Path, help="page to put the table into, between its marks")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photographs = folder / "shapes"
        photographs.mkdir()
        for i, image in enumerate(map(Shapes(length=IMAGES).image, range(IMAGES))):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(photographs / f"{i}.png")
        trees = compare_precision(
            TREE_CROWNS / "weights.pt",
            TREE_CROWNS / "train.jpg",
            str(TREE_CROWNS / "val.json"),
            folder,
        )
        shapes = compare_precision(
            SHAPES / "weights.pt", photographs, "shapes:test?length=40", folder
        )
        seconds = times(folder, args.repeats)
    rows = [("tree crowns, `val.jpg`, AP50 of boxes", *(f"{x:.3f}" for x in trees[0]))]
    for target, pair in zip(("boxes", "masks"), shapes, strict=True):
        rows.append((f"shapes, 40 test images, AP50 of {target}", *(f"{x:.3f}" for x in pair)))
    for runtime, pair in seconds.items():
        rows.append((f"Mask R-CNN R50-FPN, 800 x 1333, {runtime}", *(f"{x:.1f} s" for x in pair)))
    lines = ["| | float32 | 8 bits |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    lines += [
        "",
        f"Times are CPU seconds of one thread, {describe_machine(torch.device('cpu')).name}.",
    ]
    print(*lines, sep="\n")
    if args.page:
        args.page.write_text(fill(args.page.read_text(), "int8", "\n".join(lines) + "\n"))


if __name__ == "__main__":
    main()
