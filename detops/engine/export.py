# SPDX-License-Identifier: MIT
"""The command `detops export`: writes a portable detector file and checks its results."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from torch import Tensor

from .. import export
from ..data import load_image
from ..ops import box_iou, mask_iou
from .detect import Detector
from .published import PatchedDetector

FORMATS: dict[str, Callable[..., Any]] = {
    "pt2": export.pt2,
    "onnx": export.onnx,
    "aoti": export.aoti,
}


class Tolerances(NamedTuple):
    """Tolerances within which two detections count as the same."""

    iou: float
    score: float
    pixels: float  # maximum offset of keypoint coordinates


# Another order of summation moves an edge less.
EXACT = Tolerances(iou=0.98, score=0.01, pixels=1.0)
ROUNDED = Tolerances(iou=0.8, score=0.1, pixels=4.0)  # for 8 bits, on confident detections only
CONFIDENT_SCORE = 0.5
MAX_LOST = 0.25  # fraction of the confident detections that may be missing


def export_detector(
    detector: Detector,
    file: Path,
    kind: str,
    image_path: Path,
    console: Console,
    resizing: bool = True,
    int8: Path | None = None,
) -> str | None:
    """Exports a detector and compares the file's detections in an image with PyTorch's.

    Args:
        detector: a detector on the CPU.
        file: output file; its suffix is .onnx for that format, .pt2 for the others.
        kind: pt2, onnx or aoti.
        image_path: an image file that contains something to detect.
        console: for one line about the result.
        resizing: False keeps images at their size, whatever the config says.
        int8: an image file or a folder of them, to calibrate 8-bit quantization with.

    Returns:
        A description of what is wrong with the file, or None.

    Raises:
        ValueError: the format is unknown, the file's suffix does not match it, the folder is empty,
            or the detector is a torchvision detector.
        ImageError: the image, or one in the folder, cannot be read.
        OSError: the file cannot be written.
    """
    if kind not in FORMATS:
        raise ValueError(f"--format: expected {', '.join(FORMATS)}, got {kind}")
    if isinstance(detector.model, PatchedDetector):
        raise ValueError("--weights: expected a detector of this package, got one of torchvision")
    suffix = ".onnx" if kind == "onnx" else ".pt2"
    if file.suffix != suffix:
        raise ValueError(f"--output: format {kind} ends in {suffix}, got {file}")
    if int8 is not None and kind != "onnx":
        raise ValueError(f"--int8: requires --format onnx, got {kind}")
    calibration = [] if int8 is None else _image_files(int8)
    pixels = load_image(image_path)
    if not resizing:
        # mypy: an nn.Module's attributes may be anything.
        detector.model.min_size_test = 0  # type: ignore[assignment]
    expected = detector.detect(pixels)
    if len(expected["scores"]) == 0:
        return f"{image_path}: no detections to compare: use another --image"
    file.parent.mkdir(parents=True, exist_ok=True)
    if calibration:
        with tempfile.TemporaryDirectory() as folder:
            float_file = Path(folder) / "float32.onnx"
            export.onnx(detector.model, float_file, about=detector.about)
            export.quantize(float_file, file, _inputs(detector, calibration))
        return _compare_rounded(expected, file, pixels, image_path, console)
    FORMATS[kind](detector.model, file, about=detector.about)
    found = Detector.from_exported(file).detect(pixels)
    unmatched = count_unmatched(expected, found, EXACT) + count_unmatched(found, expected, EXACT)
    if unmatched:
        return (
            f"{file}: detections in {image_path} differ from PyTorch: {unmatched} of "
            f"{len(expected['scores'])} and {len(found['scores'])} have no match"
        )
    console.print(f"{file}: the same {len(found['scores'])} detections in {image_path}")
    return None


def _image_files(path: Path) -> list[Path]:
    if not path.exists():
        raise ValueError(f"--int8: {path}: no such file or folder")
    files = sorted(f for f in path.iterdir() if f.is_file()) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"--int8: {path}: no files in it")
    return files


def _inputs(detector: Detector, files: list[Path]) -> Iterator[Tensor]:
    for file in files:
        yield from detector.inputs(load_image(file))


def _compare_rounded(
    expected: dict[str, Any], file: Path, pixels: Tensor, image_path: Path, console: Console
) -> str | None:
    confident = expected["scores"] >= CONFIDENT_SCORE
    compared = (
        {k: v[confident] for k, v in expected.items() if k != "names"}
        if confident.any()
        else expected
    )
    lost = count_unmatched(compared, Detector.from_exported(file).detect(pixels), ROUNDED)
    total = len(compared["scores"])
    if lost > MAX_LOST * total:
        return (
            f"{file}: misses {lost} of {total} detections of {image_path}: use other --int8 images"
        )
    console.print(
        f"{file}: {total - lost} of {total} detections in {image_path}; see `detops eval`"
    )
    return None


def count_unmatched(
    detections: dict[str, Any], others: dict[str, Any], tolerances: Tolerances = EXACT
) -> int:
    """Counts detections that have no counterpart among others; both from `Detector.detect`.

    A counterpart has the same label, and nearly the same box, score, mask and keypoints.
    """
    matches = detections["labels"][:, None] == others["labels"]
    matches &= (detections["scores"][:, None] - others["scores"]).abs() <= tolerances.score
    overlap = box_iou(detections["boxes"], others["boxes"])
    matches &= overlap >= tolerances.iou
    candidate = torch.where(matches, overlap, -1.0)
    if len(others["scores"]) == 0:
        return len(detections["scores"])
    best, index = candidate.max(dim=1)
    matched = best >= 0
    for i in matched.nonzero().flatten().tolist():
        matched[i] = _same_masks_and_keypoints(detections, i, others, int(index[i]), tolerances)
    return int((~matched).sum())


def _same_masks_and_keypoints(
    detections: dict[str, Any], i: int, others: dict[str, Any], j: int, tolerances: Tolerances
) -> bool:
    if "masks" in detections:
        first, second = (x["masks"][k] for x, k in ((detections, i), (others, j)))
        # Two empty masks have no union.
        if (first | second).any() and float(mask_iou(first, second)) < tolerances.iou:
            return False
    if "keypoints" in detections:
        offset: Tensor = detections["keypoints"][i, :, :2] - others["keypoints"][j, :, :2]
        return bool((offset.abs() <= tolerances.pixels).all())
    return True
