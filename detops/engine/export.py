# SPDX-License-Identifier: MIT
"""The command `detops export`: a detector into a file that runs elsewhere, and is compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from .. import export
from ..data import load_image
from ..ops import box_iou, mask_iou
from .detect import Detector

FORMATS: dict[str, Callable[..., Any]] = {
    "pt2": export.pt2,
    "onnx": export.onnx,
    "aoti": export.aoti,
}
# Of a detection and its partner: another order of sums moves an edge by less.
LEAST_IOU = 0.98
MOST_SCORE = 0.01
MOST_PIXELS = 1.0


def export_detector(
    detector: Detector,
    file: Path,
    kind: str,
    picture: Path,
    console: Console,
    resizing: bool = True,
) -> str | None:
    """Writes a detector, and compares what the file finds in a picture with what PyTorch does.

    Args:
        detector: on the CPU.
        file: where to; ends in .onnx for that format, in .pt2 for the others.
        kind: pt2, onnx or aoti.
        picture: an image file in which there is something to find.
        console: for a line about the result.
        resizing: False: images are taken at the size they have, whatever the config says.

    Returns:
        What is wrong with the file, or None.

    Raises:
        ValueError: the format or the file's ending is another.
        ImageError: the picture cannot be read.
        OSError: the file cannot be written.
    """
    if kind not in FORMATS:
        raise ValueError(f"--format: expected {', '.join(FORMATS)}, got {kind}")
    suffix = ".onnx" if kind == "onnx" else ".pt2"
    if file.suffix != suffix:
        raise ValueError(f"--output: format {kind} ends in {suffix}, got {file}")
    pixels = load_image(picture)
    if not resizing:
        # mypy: an nn.Module's attributes may be anything.
        detector.model.min_size_test = 0  # type: ignore[assignment]
    expected = detector.detect(pixels)
    if len(expected["scores"]) == 0:
        return f"{picture}: nothing is found in it to compare: take another --image"
    file.parent.mkdir(parents=True, exist_ok=True)
    FORMATS[kind](detector.model, file, about=detector.about)
    found = Detector.from_exported(file).detect(pixels)
    wrong = without_partner(expected, found) + without_partner(found, expected)
    if wrong:
        return (
            f"{file}: finds something else in {picture} than PyTorch: {wrong} of "
            f"{len(expected['scores'])} and {len(found['scores'])} detections have no partner"
        )
    console.print(f"{file}: the same {len(found['scores'])} detections in {picture}")
    return None


def without_partner(some: dict[str, Any], others: dict[str, Any]) -> int:
    """How many of some detections are not among the others; both as `Detector.detect` gives them.

    A partner has the label, nearly the box and the score, and nearly the mask and the keypoints.
    """
    alike = some["labels"][:, None] == others["labels"]
    alike &= (some["scores"][:, None] - others["scores"]).abs() <= MOST_SCORE
    overlap = box_iou(some["boxes"], others["boxes"])
    alike &= overlap >= LEAST_IOU
    partner = torch.where(alike, overlap, -1.0)
    if len(others["scores"]) == 0:
        return len(some["scores"])
    best, index = partner.max(dim=1)
    right = best >= 0
    for i in right.nonzero().flatten().tolist():
        right[i] = _same_shape(some, i, others, int(index[i]))
    return int((~right).sum())


def _same_shape(some: dict[str, Any], i: int, others: dict[str, Any], j: int) -> bool:
    if "masks" in some:
        first, second = (x["masks"][k] for x, k in ((some, i), (others, j)))
        # Two empty masks have no union.
        if (first | second).any() and float(mask_iou(first, second)) < LEAST_IOU:
            return False
    if "keypoints" in some:
        moved: Tensor = some["keypoints"][i, :, :2] - others["keypoints"][j, :, :2]
        return bool((moved.abs() <= MOST_PIXELS).all())
    return True
