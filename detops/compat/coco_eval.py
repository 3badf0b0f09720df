# SPDX-License-Identifier: MIT
"""The COCO evaluation of ``detectron2._C`` on pycocotools, as called by ``COCOeval_opt``."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np


@dataclass
class InstanceAnnotation:
    """A ground-truth object or a detection."""

    id: int
    score: float
    area: float
    is_crowd: bool
    ignore: bool


class ImageEvaluation:
    """The matches of one image, category and area range.

    Args:
        matches: result of ``pycocotools.cocoeval.COCOeval.evaluateImg``.
    """

    def __init__(self, matches: dict[str, Any] | None = None) -> None:
        self.matches = matches


Instances = Sequence[Sequence[Sequence[InstanceAnnotation]]]  # by image, by category


def _by_image_and_category(instances: Instances) -> dict[tuple[int, int], list[dict[str, Any]]]:
    return {
        (image, category): [
            dict(id=x.id, score=x.score, area=x.area, iscrowd=int(x.is_crowd), ignore=int(x.ignore))
            for x in found
        ]
        for image, categories in enumerate(instances)
        for category, found in enumerate(categories)
    }


def evaluate_images(
    area_ranges: Sequence[Sequence[float]],
    max_detections: int,
    iou_thresholds: Sequence[float],
    ious: Sequence[Sequence[Any]],
    objects: Instances,
    detections: Instances,
) -> list[ImageEvaluation]:
    """Matches detections with objects, ordered by category, area range and image."""
    from pycocotools.cocoeval import COCOeval

    evaluator = COCOeval(iouType="bbox")
    evaluator.params.iouThrs = np.asarray(iou_thresholds)
    evaluator._gts, evaluator._dts = (
        _by_image_and_category(objects),
        _by_image_and_category(detections),
    )
    evaluator.ious = {(i, k): iou for i, row in enumerate(ious) for k, iou in enumerate(row)}
    images, categories = range(len(objects)), range(len(objects[0]) if objects else 0)
    return [
        ImageEvaluation(evaluator.evaluateImg(image, category, area, max_detections))
        for category, area, image in product(categories, area_ranges, images)
    ]


def accumulate(params: Any, evaluations: Sequence[ImageEvaluation]) -> dict[str, Any]:
    """Returns precision, recall and scores over all images as flat arrays, and their ``counts``."""
    from pycocotools.cocoeval import COCOeval

    evaluator = COCOeval(iouType=params.iouType)
    evaluator.params = evaluator._paramsEval = params
    evaluator.evalImgs = [each.matches for each in evaluations]
    with contextlib.redirect_stdout(io.StringIO()):  # hides its progress output
        evaluator.accumulate()
    results: dict[str, Any] = evaluator.eval
    return results | {name: results[name].ravel() for name in ("precision", "recall", "scores")}
