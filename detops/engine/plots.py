# SPDX-License-Identifier: MIT
"""Plots of training metrics and of detections, drawn with matplotlib."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate

from ..data.detection import DetectionDataset
from ..data.masks import decode_masks
from ..ops import box_convert
from ..visualize import contact_sheet, draw_detections
from .anchor_fit import AnchorFit
from .checkpoint import writing
from .curves import confusion_matrix, precision_recall
from .metrics import read_metrics
from .progress import AP_KEYS, LOSS_PREFIX, smoothed

SHEET_WIDTH = 1920  # pixels, of contact sheets
MAX_COMPARED = 4  # images shown with ground truth next to detections
MAX_COUNTED_CLASSES = 20  # most classes for which a confusion matrix shows counts
MAX_NAMED_CLASSES = 60  # most classes for which it shows names
MATPLOTLIB_MISSING = "no plots: they require matplotlib: pip install 'detops[plots]'"


def has_matplotlib() -> bool:
    """Returns whether matplotlib is installed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def plot_training(metrics: Path, path: Path, last: dict[str, Any] | None = None) -> None:
    """Plots the loss and its parts, the learning rate and AP over the training steps.

    Args:
        metrics: the training run's `metrics.jsonl`, which includes the steps before a resume.
        path: the output image.
        last: step and evaluation of the final weights.

    Raises:
        OutputError: the image cannot be written.
    """
    records = read_metrics(metrics)
    steps = [record["step"] for record in records]
    figure, (losses, rate, precision) = _figure(3, (7, 9))
    names = [
        key for key in dict.fromkeys(k for r in records for k in r) if key.startswith(LOSS_PREFIX)
    ]
    for name in ["loss", *names]:
        recorded = (record.get(name) for record in records)
        _, *parts = accumulate(recorded, smoothed, initial=math.nan)
        losses.plot(steps, parts, label=name.removeprefix(LOSS_PREFIX), linewidth=1)
    losses.set(ylabel="loss, smoothed", xlabel="step")
    rate.plot(steps, [record.get("lr", math.nan) for record in records], linewidth=1)
    rate.set(ylabel="learning rate", xlabel="step")
    history = defaultdict(list)
    for record in [*records, *([last] if last else [])]:
        for name, rated in record.get("evaluation", {}).items():
            for key in AP_KEYS[:2]:
                history[f"{key} of {name}"].append((record["step"], rated.get(key)))
    for name, points in history.items():
        # None becomes NaN, which matplotlib skips. AP is None if there are no objects.
        at, values = zip(*points, strict=True)
        precision.plot(at, np.array(values, dtype=float), ".-", label=name)
    precision.set(ylabel="AP of boxes", xlabel="step", ylim=(0, 1))
    for axes in (losses, precision):
        if axes.get_lines():
            axes.legend(fontsize=8)
    _save(figure, path)


def plot_evaluation(
    folder: Path, dataset: DetectionDataset, detections: list[dict[str, Any]]
) -> None:
    """Plots precision over recall, the confusion matrix, and ground truth next to detections.

    Args:
        folder: folder for `precision_recall.png`, `confusion_matrix.png` and `detections.png`;
            created if missing.
        dataset: a dataset without a transform.
        detections: detections in the dataset, as COCO results.

    Raises:
        OutputError: an image cannot be written.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    truth = dataset.ground_truth()
    _plot_precision_recall(folder / "precision_recall.png", truth, detections)
    matrix = confusion_matrix(truth, detections)
    _plot_confusion(folder / "confusion_matrix.png", matrix, dataset.names)
    sheet = compare(dataset, detections)
    with writing(folder / "detections.png"):
        sheet.save(folder / "detections.png")


def plot_anchor_fit(fit: AnchorFit, path: Path) -> None:
    """Plots a histogram of box sizes, one colour per level with the best anchor.

    Raises:
        ImportError: matplotlib is not installed.
        OutputError: the image cannot be written.
    """
    figure, (axes,) = _figure(1, (8, 4))
    sides = fit.sides.numpy()
    if len(sides):
        bins = np.geomspace(max(1, sides.min()), max(2, sides.max()) * 1.01, 40)
        matched = (fit.iou >= fit.low).numpy()
        kinds = [matched & (fit.level.numpy() == level) for level in range(len(fit.strides))]
        labels = [f"best anchor at stride {stride}" for stride in fit.strides]
        shown = [sides[kind] for kind in (*kinds, ~matched)]
        names = [*labels, f"no anchor with IoU {fit.low:g}"]
        colours = [f"C{level}" for level in range(len(kinds))]
        axes.hist(shown, bins, stacked=True, label=names, color=[*colours, "black"])
        axes.legend(fontsize=8)
    for level, anchors in enumerate(fit.anchor_sides):
        for side in anchors:
            axes.axvline(side, color=f"C{level}", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("{x:g}")
    axes.set(xlabel="square root of the area, pixels; dotted: anchors", ylabel="boxes")
    _save(figure, path)


def compare(
    dataset: DetectionDataset, detections: list[dict[str, Any]], score_threshold: float = 0.5
) -> Image.Image:
    """Draws a contact sheet of images, one per row: ground truth left, detections right.

    Args:
        dataset: a dataset without a transform. The images are evenly spaced among those with
            objects, or among all images if there are none.
        detections: detections in the dataset, as COCO results.
        score_threshold: detections below it are skipped.
    """
    by_image = defaultdict(list)
    for detection in detections:
        if detection["score"] >= score_threshold:
            by_image[detection["image_id"]].append(detection)
    drawings = []
    annotations = dataset.ground_truth()["annotations"]
    annotated = {a["image_id"] for a in annotations if not a["iscrowd"]}
    chosen = [i for i, record in enumerate(dataset.images) if record["id"] in annotated]
    for index in evenly_spaced(chosen or range(len(dataset)), MAX_COMPARED):
        image, target = dataset.image(index), dataset.target(index)
        drawings.append(draw_objects(image, target, dataset.names, SHEET_WIDTH // 2))
        found = by_image[dataset.images[index]["id"]]
        boxes = torch.tensor([d["bbox"] for d in found], dtype=torch.float32).reshape(-1, 4)
        labels = torch.tensor(
            [dataset.label_of[d["category_id"]] for d in found], dtype=torch.int64
        )
        parts: dict[str, Any] = {"boxes": box_convert(boxes, "xywh", "xyxy"), "labels": labels}
        if found and "segmentation" in found[0]:
            parts["masks"] = decode_masks([d["segmentation"] for d in found], *image.shape[1:])
        if found and "keypoints" in found[0]:
            points = torch.tensor([d["keypoints"] for d in found])
            parts["keypoints"] = points.reshape(len(found), -1, 3)
        scores = torch.tensor([d["score"] for d in found])
        drawings.append(draw_objects(image, parts, dataset.names, SHEET_WIDTH // 2, scores))
    return contact_sheet(drawings, columns=2, width=SHEET_WIDTH)


def draw_objects(
    image: torch.Tensor,
    target: dict[str, Any],
    names: Sequence[str],
    side: int,
    scores: torch.Tensor | None = None,
) -> Image.Image:
    """Draws a target or detections on an image, with names if there are several classes.

    The image is resized to fit into a square of this side first, so that names stay legible.
    """
    boxes, labels = target["boxes"], target["labels"]
    masks, keypoints = target.get("masks"), target.get("keypoints")
    box_names = [names[label - 1] for label in labels.tolist()] if len(names) > 1 else None
    factor = side / max(image.shape[1:])
    size = [max(1, round(factor * length)) for length in image.shape[1:]]
    resized = interpolate(image[None].float(), size=size, mode="bilinear", antialias=True)
    image = resized[0].round().byte()
    if masks is not None:
        masks = interpolate(masks[:, None].float(), size=size)[:, 0].bool()
    if keypoints is not None:
        keypoints = keypoints * torch.tensor([factor, factor, 1.0])
    return draw_detections(
        image,
        boxes * factor,
        scores,
        labels,
        box_names,
        masks=masks,
        keypoints=keypoints,
        enlarge=False,
    )


def evenly_spaced(values: Sequence[int], count: int) -> list[int]:
    """Returns `count` evenly spaced values, or all of them if there are no more.

    >>> evenly_spaced([1, 2, 3, 4, 5], 3)
    [1, 3, 5]
    """
    indices = np.linspace(0, len(values) - 1, min(count, len(values))).round().astype(int)
    return [values[index] for index in indices]


def _plot_precision_recall(
    path: Path, truth: dict[str, Any], detections: list[dict[str, Any]]
) -> None:
    figure, (axes,) = _figure(1, (6, 5))
    recall, curves = precision_recall(truth, detections)
    for name, precision in curves.items():
        axes.plot(recall, precision, label=f"{name}: AP {precision.mean():.3f}")
    axes.set(xlabel="recall", ylabel="precision", xlim=(0, 1), ylim=(0, 1.02))
    if curves:
        axes.legend(fontsize=8)
    _save(figure, path)


def _plot_confusion(path: Path, matrix: np.ndarray, names: Sequence[str]) -> None:
    size = 3.5 + 0.4 * min(len(names), MAX_NAMED_CLASSES)
    figure, (axes,) = _figure(1, (size + 1, size))
    axes.grid(False)
    # Fractions of each row's sum: of the objects of a class or, in the last row, of the detections
    # without an object.
    fractions = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    axes.imshow(fractions, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="found as", ylabel="object", title="IoU 0.5, score 0.5")
    if len(names) <= MAX_NAMED_CLASSES:
        ticks = range(len(names) + 1)
        axes.set_xticks(ticks, [*names, "not found"], rotation=90, fontsize=8)
        axes.set_yticks(ticks, [*names, "no object"], fontsize=8)
    if len(names) <= MAX_COUNTED_CLASSES:
        for row, column in np.argwhere(matrix):
            colour = "white" if fractions[row, column] > 0.5 else "black"
            text = str(matrix[row, column])
            axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    _save(figure, path)


def _figure(rows: int, size: tuple[float, float]) -> tuple[Any, Sequence[Any]]:
    # Avoid pyplot, whose figures and settings are global to the process.
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(MATPLOTLIB_MISSING) from error
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, squeeze=False)[:, 0]
    for each in axes:
        each.grid(True, alpha=0.3)
    return figure, list(axes)


def _save(figure: Any, path: Path) -> None:
    with writing(path):
        figure.savefig(path, dpi=120)


def plot_all(
    folder: Path,
    found: dict[str, tuple[DetectionDataset, list[dict[str, Any]]]],
    warn: Callable[[str], Any],
) -> None:
    """Runs `plot_evaluation` on several datasets, each in a folder of its name.

    Args:
        folder: parent of these folders.
        found: dataset and detections by name.
        warn: called with one line if matplotlib is missing; nothing is plotted then.
    """
    if not has_matplotlib():
        warn(MATPLOTLIB_MISSING)
        return
    for name, (dataset, detections) in found.items():
        folder_name = "".join(c if c.isalnum() or c in "._-" else "_" for c in name)
        plot_evaluation(folder / folder_name, dataset, detections)
