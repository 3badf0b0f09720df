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
from .visualize import colour_of, draw_detections, with_legend

# Test photographs, and a seed that neither training nor its evaluation uses.
UNSEEN: dict[str, Any] = {"split": "test", "seed": 2024}
PICTURE: dict[str, Any] = {"size": (400, 600), "objects": 10}
PICTURE_INDEX = 26
RATED_IMAGES, RATED_SIZE = 50, 160
SHOWN_SCORE = 0.5


def run(output: Path, weights: Path, console: Console) -> None:
    """Finds shapes in a generated image, draws boxes and masks, and evaluates on a small set.

    Args:
        output: image to write.
        weights: checkpoint to detect with.
        console: prints the table, and the image's path on the last line.
    """
    detector = Detector.from_checkpoint(weights)
    scene = Shapes(length=PICTURE_INDEX + 1, **PICTURE, **UNSEEN)
    image = scene.image(PICTURE_INDEX)
    began = time.perf_counter()
    found = detector.detect(image, SHOWN_SCORE)
    seconds = time.perf_counter() - began
    picture = draw_detections(
        image,
        found["boxes"],
        found["scores"],
        found["labels"],
        found["names"],
        masks=found.get("masks"),
    )
    seen = sorted(set(zip(found["labels"].tolist(), found["names"], strict=True)))
    output.parent.mkdir(parents=True, exist_ok=True)
    with_legend(picture, {name: colour_of(label) for label, name in seen}).save(output)

    metrics = evaluate(detector, Shapes(length=RATED_IMAGES, size=RATED_SIZE, **UNSEEN))
    table = Table(title="Shapes on photographs not seen in training", show_header=False)
    table.add_row("shapes in the picture", str(len(scene.target(PICTURE_INDEX)["labels"])))
    table.add_row(f"found, score at least {SHOWN_SCORE}", str(len(found["scores"])))
    table.add_row("time", f"{seconds:.2f} s")
    table.add_row("images rated", f"{metrics['images']}, {metrics['objects']} shapes")
    for name, rated in (("box", metrics), ("mask", metrics.get("segm", {}))):
        for key in ("AP50", "AP"):
            value = rated.get(key)
            table.add_row(f"{name} {key}", "-" if value is None else f"{value:.3f}")
    console.print(table)
    console.print(str(output.resolve()))
