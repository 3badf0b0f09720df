# SPDX-License-Identifier: MIT
"""The mask demo: finds shapes on photographs that were not used in training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .data import Shapes
from .engine import Detector, evaluate
from .visualize import class_colour, draw_detections, with_legend

# Test photographs, and a seed that neither training nor its evaluation uses.
TEST_SPLIT: dict[str, Any] = {"split": "test", "seed": 2024}
SCENE: dict[str, Any] = {"size": (400, 600), "objects": 10}
SCENE_INDEX = 26
EVALUATED_IMAGES, EVALUATED_SIZE = 50, 160
SCORE_THRESHOLD = 0.5


def run(output: Path, weights: Path, console: Console) -> None:
    """Finds shapes in a generated image, draws boxes and masks, and evaluates on a small set.

    Args:
        output: image to write.
        weights: checkpoint to detect with.
        console: prints the table, and the image's path on the last line.
    """
    detector = Detector.from_checkpoint(weights)
    scene = Shapes(length=SCENE_INDEX + 1, **SCENE, **TEST_SPLIT)
    image = scene.image(SCENE_INDEX)
    start = time.perf_counter()
    detections = detector.detect(image, SCORE_THRESHOLD)
    seconds = time.perf_counter() - start
    drawing = draw_detections(
        image,
        detections["boxes"],
        detections["scores"],
        detections["labels"],
        detections["names"],
        masks=detections.get("masks"),
    )
    classes = sorted(set(zip(detections["labels"].tolist(), detections["names"], strict=True)))
    output.parent.mkdir(parents=True, exist_ok=True)
    with_legend(drawing, {name: class_colour(label) for label, name in classes}).save(output)

    metrics = evaluate(detector, Shapes(length=EVALUATED_IMAGES, size=EVALUATED_SIZE, **TEST_SPLIT))
    table = Table(title="Shapes on photographs not seen in training", show_header=False)
    table.add_row("shapes in the image", str(len(scene.target(SCENE_INDEX)["labels"])))
    table.add_row(f"detected, score at least {SCORE_THRESHOLD}", str(len(detections["scores"])))
    table.add_row("time", f"{seconds:.2f} s")
    table.add_row("images evaluated", f"{metrics['images']}, {metrics['objects']} shapes")
    for name, results in (("box", metrics), ("mask", metrics.get("segm", {}))):
        for key in ("AP50", "AP"):
            value = results.get(key)
            table.add_row(f"{name} {key}", "-" if value is None else f"{value:.3f}")
    console.print(table)
    console.print(str(output.resolve()))
