# SPDX-License-Identifier: MIT
"""COCO evaluation by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from ..data.detection import DetectionDataset
from .detect import Detector

STANDARD_LIMIT = 100


def evaluate(
    detector: Detector,
    dataset: DetectionDataset,
    max_detections: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Detects in every image of a data set and rates the detections.

    Args:
        detector: its names must be the data set's, in the same order.
        dataset: without a transform.
        max_detections: see `coco_metrics`.
        report: called with (images done, images in all) after each image.

    Raises:
        ValueError: the names differ.
    """
    if detector.names != dataset.names:
        raise ValueError(
            f"{dataset.path}: categories {list(dataset.names)} differ from the detector's "
            f"{list(detector.names)}"
        )
    detections: list[dict[str, Any]] = []
    for index, record in enumerate(dataset.images):
        found = detector.detect(dataset.image(index))
        detections += to_coco(found, record["id"], dataset.category_ids)
        if report is not None:
            report(index + 1, len(dataset))
    return coco_metrics(dataset.ground_truth(), detections, max_detections)


def to_coco(
    found: dict[str, Any], image_id: Any, category_ids: tuple[int, ...]
) -> list[dict[str, Any]]:
    """Detections of one image as COCO results: bbox is x, y, width, height."""
    boxes = found["boxes"].clone()
    boxes[:, 2:] -= boxes[:, :2]
    columns = (boxes.tolist(), found["labels"].tolist(), found["scores"].tolist())
    return [
        {
            "image_id": image_id,
            "category_id": category_ids[label - 1],
            "bbox": box,
            "score": score,
        }
        for box, label, score in zip(*columns, strict=True)
    ]


def coco_metrics(
    ground_truth: dict[str, Any],
    detections: list[dict[str, Any]],
    max_detections: int | None = None,
) -> dict[str, Any]:
    """Average precision and recall of boxes.

    Args:
        ground_truth: a COCO dict of images, categories, annotations.
        detections: COCO results: image_id, category_id, bbox, score.
        max_detections: best detections counted in an image. COCO's standard is 100; an image
            with more objects than that cannot reach full recall under it. None takes the larger
            of 100 and twice the most objects in one image.

    Returns:
        AP (IoU 0.50:0.95), AP50, AP75, AR and max_detections, the limit these were computed with;
        the same three and AR under "standard" with the limit 100; images, objects, detections:
        counts. A value is None where there is no ground truth.
    """
    annotations = ground_truth["annotations"]
    if max_detections is None:
        per_image = np.unique([str(a["image_id"]) for a in annotations], return_counts=True)[1]
        max_detections = max(STANDARD_LIMIT, 2 * int(per_image.max(initial=0)))
    if max_detections < 1:
        raise ValueError(f"max_detections: expected at least 1, got {max_detections}")
    limits = sorted({STANDARD_LIMIT, max_detections})
    results = _accumulate(ground_truth, detections, limits)
    return {
        **_summary(results, limits.index(max_detections)),
        "max_detections": max_detections,
        "standard": {
            **_summary(results, limits.index(STANDARD_LIMIT)),
            "max_detections": STANDARD_LIMIT,
        },
        "images": len(ground_truth["images"]),
        "objects": len(annotations),
        "detections": len(detections),
    }


def _accumulate(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]], limits: list[int]
) -> dict[str, np.ndarray]:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    # The library adds fields to its input in place, and loadRes fails on an empty list: so both
    # sides are built here, from copies.
    completed = [
        d | {"id": number, "iscrowd": 0, "area": d["bbox"][2] * d["bbox"][3]}
        for number, d in enumerate(detections, start=1)
    ]
    # Ids from 1: the library takes id 0 for "not matched".
    annotations = [
        a | {"id": number} for number, a in enumerate(ground_truth["annotations"], start=1)
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        sides = []
        for entries in (annotations, completed):
            side = COCO()
            side.dataset = ground_truth | {"annotations": entries}
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, iouType="bbox")
        evaluation.params.maxDets = limits
        evaluation.evaluate()
        evaluation.accumulate()
    thresholds = evaluation.params.iouThrs
    return evaluation.eval | {"thresholds": thresholds}


def _summary(results: dict[str, np.ndarray], limit: int) -> dict[str, float | None]:
    # [IoU threshold, recall, class, area range, limit]; area range 0 is "all". The library's own
    # summarize() looks for fixed limits and gives -1 when they are not there.
    precision = results["precision"][:, :, :, 0, limit]
    recall = results["recall"][:, :, 0, limit]

    def at(threshold: float) -> np.ndarray:
        return precision[np.isclose(results["thresholds"], threshold)]

    values = {"AP": precision, "AP50": at(0.5), "AP75": at(0.75), "AR": recall}
    return {name: _mean(value) for name, value in values.items()}


def _mean(values: np.ndarray) -> float | None:
    known = values[values > -1]
    return float(known.mean()) if known.size else None
