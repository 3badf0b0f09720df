# SPDX-License-Identifier: MIT
"""The tree demo: finds crowns in a photograph, and times the operators against torchvision."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import detops

from .cli.options import TREE_CROWNS
from .data import CocoDetection
from .engine import Detector, coco_metrics
from .engine.evaluate import to_coco
from .visualize import PALETTE, TRUTH_COLOUR, draw_detections, with_legend

SCORE_THRESHOLD = 0.5
SECONDS_PER_CASE = 1.0
REPEATS = (3, 25)  # minimum and maximum
TOLERANCE = 1e-4

Call = Callable[[], Any]


@dataclass
class Case:
    """One computation in detops and in the baseline, torchvision, and the reference result."""

    name: str
    ours: Call
    baseline: Call
    reference: Call | None = None  # the baseline by default


def run(output: Path, weights: Path, console: Console) -> None:
    """Detects the crowns in val.jpg, draws and evaluates them, and times the operators.

    Args:
        output: image to write.
        weights: checkpoint to detect with.
        console: prints the tables, and the image's path on the last line.
    """
    dataset = CocoDetection(TREE_CROWNS / "val.json")
    detector = Detector.from_checkpoint(weights)
    start = time.perf_counter()
    detections = detector.detect(dataset.image_path(0))
    seconds = time.perf_counter() - start
    console.print(_metrics_table(detections, dataset, seconds))

    shown = detections["scores"] >= SCORE_THRESHOLD
    truth = dataset.target(0)["boxes"]
    drawing = draw_detections(
        dataset.image_path(0),
        detections["boxes"][shown],
        detections["scores"][shown],
        ground_truth=truth,
    )
    legend = {
        f"detected, with a score of at least {SCORE_THRESHOLD}": PALETTE[0],
        "annotated": TRUTH_COLOUR,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    with_legend(drawing, legend).save(output)

    cases = _cases()
    if cases:
        console.print(_timings_table(cases))
    else:
        console.print("torchvision is not installed, so the operators are not timed")
    console.print(str(output.resolve()))


def _metrics_table(detections: dict[str, Any], dataset: CocoDetection, seconds: float) -> Table:
    coco_detections = to_coco(detections, dataset.images[0]["id"], dataset.category_ids)
    metrics = coco_metrics(dataset.ground_truth(), coco_detections)
    title = f"Tree crowns in {dataset.image_path(0).name}"
    table = Table(title=title, show_header=False)
    table.add_row("annotated", str(metrics["objects"]))
    table.add_row(
        f"detected, score at least {SCORE_THRESHOLD}",
        str(int((detections["scores"] >= SCORE_THRESHOLD).sum())),
    )
    table.add_row("AP50", f"{metrics['AP50']:.3f}")
    table.add_row("AP (IoU 0.50 to 0.95)", f"{metrics['AP']:.3f}")
    table.add_row("detections counted", f"best {metrics['max_detections']}")
    table.add_row("time", f"{seconds:.2f} s")
    return table


def _timings_table(cases: list[Case]) -> Table:
    threads = torch.get_num_threads()
    table = Table(title=f"Operators, milliseconds (median, CPU, {threads} threads for both)")
    table.add_column("operator", no_wrap=True)
    for column in ("detops", "torchvision", "ratio", "same result"):
        table.add_column(column, justify="right")
    for case in cases:
        result = case.ours()
        same = _equal(result, (case.reference or case.baseline)())
        ours, baseline = _medians(case.ours, case.baseline)
        table.add_row(
            case.name,
            f"{ours * 1e3:.2f}",
            f"{baseline * 1e3:.2f}",
            f"{baseline / ours:.1f}x",
            "yes" if same else "no",
        )
    return table


def _medians(ours: Call, baseline: Call) -> tuple[float, float]:
    """Returns the median seconds of each, timed in turn to expose both to the same load."""
    times: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    minimum, maximum = REPEATS
    while len(times[0]) < maximum:
        if len(times[0]) >= minimum and time.perf_counter() - start > SECONDS_PER_CASE:
            break
        for call, durations in zip((ours, baseline), times, strict=True):
            call_start = time.perf_counter()
            call()
            durations.append(time.perf_counter() - call_start)
    return statistics.median(times[0]), statistics.median(times[1])


def _equal(ours: Tensor, baseline: Tensor) -> bool:
    """Compares indices exactly, and floats within the tolerance relative to the largest value."""
    if ours.shape != baseline.shape or ours.dtype != baseline.dtype:
        return False
    if not ours.is_floating_point():
        return torch.equal(ours, baseline)
    scale = max(1.0, float(baseline.abs().max())) if baseline.numel() else 1.0
    return bool(((ours - baseline).abs() <= TOLERANCE * scale).all())


def _cases() -> list[Case]:
    try:
        from torchvision import ops as vision
    except ImportError:
        return []
    return [*_box_cases(vision), *_roi_cases(vision), *_pyramid_cases(vision)]


def _random_boxes(generator: torch.Generator, count: int, width: int, height: int) -> Tensor:
    corner = torch.rand(count, 2, generator=generator) * torch.tensor([width, height]) * 0.9
    size = 16 + torch.rand(count, 2, generator=generator) * 120
    limit = torch.tensor([width, height], dtype=torch.float32)
    return torch.cat([corner, torch.minimum(corner + size, limit)], dim=1)


def _box_cases(vision: Any) -> list[Case]:
    generator = torch.Generator().manual_seed(0)
    boxes = _random_boxes(generator, 10_000, 1333, 800)
    scores = torch.rand(10_000, generator=generator)
    subset, subset_scores = boxes[:8000], scores[:8000]
    classes = torch.randint(80, (8000,), generator=generator)

    def nms_per_class() -> Tensor:
        kept = []
        for label in range(80):
            index = (classes == label).nonzero().squeeze(1)
            kept.append(index[vision.nms(subset[index], subset_scores[index], 0.5)])
        merged = torch.cat(kept).sort().values
        return merged[subset_scores[merged].argsort(descending=True, stable=True)]

    cases = []
    for count in (1000, 10_000):
        first, first_scores = boxes[:count], scores[:count]
        ours, baseline = (partial(op, first, first_scores, 0.5) for op in (detops.nms, vision.nms))
        cases.append(Case(f"nms, {count:,} boxes", ours, baseline))
    cases.append(
        Case(
            "batched_nms, 8,000, 80 classes",
            lambda: detops.batched_nms(subset, subset_scores, classes, 0.5),
            lambda: vision.batched_nms(subset, subset_scores, classes, 0.5),
            nms_per_class,
        )
    )
    first, second = boxes[:2000], boxes[2000:4000]
    cases.append(
        Case(
            "box_iou, 2,000 x 2,000",
            lambda: detops.box_iou(first, second),
            lambda: vision.box_iou(first, second),
        )
    )
    return cases


def _roi_cases(vision: Any) -> list[Case]:
    generator = torch.Generator().manual_seed(1)
    cases = []
    layouts = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
    for layout, memory_format in layouts.items():
        features = torch.randn(2, 256, 50, 84, generator=generator)
        features = features.contiguous(memory_format=memory_format).requires_grad_()
        boxes = [_random_boxes(generator, 128, 1333, 800) for _ in range(2)]

        arguments = (features, boxes, 7, 1 / 16, 2, True)
        for name, make_call in (("forward", _forward), ("backward", _backward)):
            ours, baseline = (
                make_call(op, arguments) for op in (detops.roi_align, vision.roi_align)
            )
            cases.append(Case(f"roi_align {name}, {layout}", ours, baseline))
    return cases


def _forward(op: Callable[..., Tensor], arguments: tuple) -> Call:
    return lambda: op(*arguments).detach()


def _backward(op: Callable[..., Tensor], arguments: tuple) -> Call:
    pooled = op(*arguments)
    gradient = torch.linspace(-1, 1, pooled.numel()).view_as(pooled)
    return lambda: torch.autograd.grad(pooled, arguments[0], gradient, retain_graph=True)[0]


def _pyramid_cases(vision: Any) -> list[Case]:
    generator = torch.Generator().manual_seed(2)
    levels = {
        str(i): torch.randn(1, 256, 200 >> i, 336 >> i, generator=generator) for i in range(4)
    }
    boxes = [_random_boxes(generator, 500, 1333, 800)]
    arguments = ([*levels], 7, 2)
    ours, baseline = detops.MultiScaleRoIAlign(*arguments), vision.MultiScaleRoIAlign(*arguments)
    return [
        Case(
            "MultiScaleRoIAlign, 500 boxes",
            lambda: ours(levels, boxes, [(800, 1333)]),
            lambda: baseline(levels, boxes, [(800, 1333)]),
        )
    ]
