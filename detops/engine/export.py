# SPDX-License-Identifier: MIT
"""The command `detops export`: a detector into a file that runs elsewhere, and is compared."""

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
from .published import OnTheseOps

FORMATS: dict[str, Callable[..., Any]] = {
    "pt2": export.pt2,
    "onnx": export.onnx,
    "aoti": export.aoti,
}


class Bounds(NamedTuple):
    """How near a detection and its partner are."""

    iou: float
    score: float
    pixels: float  # of keypoints


EXACT = Bounds(iou=0.98, score=0.01, pixels=1.0)  # another order of sums moves an edge by less
ROUNDED = Bounds(iou=0.8, score=0.1, pixels=4.0)  # in 8 bits, of detections that are sure of it
SURE = 0.5
MOST_LOST = 0.25  # share of those


def export_detector(
    detector: Detector,
    file: Path,
    kind: str,
    picture: Path,
    console: Console,
    resizing: bool = True,
    int8: Path | None = None,
) -> str | None:
    """Writes a detector, and compares what the file finds in a picture with what PyTorch does.

    Args:
        detector: on the CPU.
        file: where to; ends in .onnx for that format, in .pt2 for the others.
        kind: pt2, onnx or aoti.
        picture: an image file in which there is something to find.
        console: for a line about the result.
        resizing: False: images are taken at the size they have, whatever the config says.
        int8: an image file or a folder of them, to set the scales of 8-bit numbers by.

    Returns:
        What is wrong with the file, or None.

    Raises:
        ValueError: the format or the file's ending is another, the folder is empty, or the detector
            is torchvision's.
        ImageError: the picture, or one of the folder, cannot be read.
        OSError: the file cannot be written.
    """
    if kind not in FORMATS:
        raise ValueError(f"--format: expected {', '.join(FORMATS)}, got {kind}")
    if isinstance(detector.model, OnTheseOps):
        raise ValueError("--weights: expected a detector of this package, got one of torchvision")
    suffix = ".onnx" if kind == "onnx" else ".pt2"
    if file.suffix != suffix:
        raise ValueError(f"--output: format {kind} ends in {suffix}, got {file}")
    if int8 is not None and kind != "onnx":
        raise ValueError(f"--int8: needs --format onnx, got {kind}")
    calibration = [] if int8 is None else _image_files(int8)
    pixels = load_image(picture)
    if not resizing:
        # mypy: an nn.Module's attributes may be anything.
        detector.model.min_size_test = 0  # type: ignore[assignment]
    expected = detector.detect(pixels)
    if len(expected["scores"]) == 0:
        return f"{picture}: nothing is found in it to compare: take another --image"
    file.parent.mkdir(parents=True, exist_ok=True)
    if calibration:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "float32.onnx"
            export.onnx(detector.model, plain, about=detector.about)
            export.quantize(plain, file, _inputs(detector, calibration))
        return _compare_rounded(expected, file, pixels, picture, console)
    FORMATS[kind](detector.model, file, about=detector.about)
    found = Detector.from_exported(file).detect(pixels)
    wrong = without_partner(expected, found, EXACT) + without_partner(found, expected, EXACT)
    if wrong:
        return (
            f"{file}: finds something else in {picture} than PyTorch: {wrong} of "
            f"{len(expected['scores'])} and {len(found['scores'])} detections have no partner"
        )
    console.print(f"{file}: the same {len(found['scores'])} detections in {picture}")
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
    expected: dict[str, Any], file: Path, pixels: Tensor, picture: Path, console: Console
) -> str | None:
    sure = expected["scores"] >= SURE
    some = {k: v[sure] for k, v in expected.items() if k != "names"} if sure.any() else expected
    lost = without_partner(some, Detector.from_exported(file).detect(pixels), ROUNDED)
    total = len(some["scores"])
    if lost > MOST_LOST * total:
        return f"{file}: misses {lost} of {total} detections of {picture}: take other --int8"
    console.print(f"{file}: {total - lost} of {total} detections in {picture}; see `detops eval`")
    return None


def without_partner(some: dict[str, Any], others: dict[str, Any], bounds: Bounds = EXACT) -> int:
    """How many of some detections are not among the others; both as `Detector.detect` gives them.

    A partner has the label, nearly the box and the score, and nearly the mask and the keypoints.
    """
    alike = some["labels"][:, None] == others["labels"]
    alike &= (some["scores"][:, None] - others["scores"]).abs() <= bounds.score
    overlap = box_iou(some["boxes"], others["boxes"])
    alike &= overlap >= bounds.iou
    partner = torch.where(alike, overlap, -1.0)
    if len(others["scores"]) == 0:
        return len(some["scores"])
    best, index = partner.max(dim=1)
    right = best >= 0
    for i in right.nonzero().flatten().tolist():
        right[i] = _same_shape(some, i, others, int(index[i]), bounds)
    return int((~right).sum())


def _same_shape(
    some: dict[str, Any], i: int, others: dict[str, Any], j: int, bounds: Bounds
) -> bool:
    if "masks" in some:
        first, second = (x["masks"][k] for x, k in ((some, i), (others, j)))
        # Two empty masks have no union.
        if (first | second).any() and float(mask_iou(first, second)) < bounds.iou:
            return False
    if "keypoints" in some:
        moved: Tensor = some["keypoints"][i, :, :2] - others["keypoints"][j, :, :2]
        return bool((moved.abs() <= bounds.pixels).all())
    return True
