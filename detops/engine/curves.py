# SPDX-License-Identifier: MIT
"""Precision by recall, and which classes are taken for which; the matching is pycocotools'."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np

from .evaluate import accumulate, prepared

SHOWN_IOUS = (0.5, 0.75)


def precision_recall(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Precision of boxes by recall, as means over the classes that have objects.

    Args:
        ground_truth: a COCO dict.
        detections: COCO results.

    Returns:
        The recalls [101], from 0 to 1, and the precisions [101] at IoU 0.5, at 0.75 and as the mean
        over COCO's ten thresholds; none where there are no objects.
    """
    # COCO's cut at 100 would end the curve where there are more objects.
    results = accumulate(ground_truth, detections, [max(1, len(detections))])
    # [IoU threshold, recall, class]
    precision = results["precision"][:, :, :, 0, 0]
    precision = precision[:, :, (precision > -1).all(axis=(0, 1))]
    if precision.size == 0:
        return results["recalls"], {}
    by_iou = precision.mean(axis=2)
    thresholds = results["thresholds"]
    curves = {f"IoU {iou:g}": by_iou[np.isclose(thresholds, iou)][0] for iou in SHOWN_IOUS}
    return results["recalls"], curves | {"mean of IoU 0.5 to 0.95": by_iou.mean(axis=0)}


def confusion_matrix(
    ground_truth: dict[str, Any],
    detections: list[dict[str, Any]],
    score_threshold: float = 0.5,
    iou_threshold: float = 0.5,
) -> np.ndarray:
    """How often an object of one class is found as another.

    Detections are matched to objects whatever their classes, surest first, as COCO matches those of
    one class. Crowds, and what is found in them, are not counted.

    Args:
        ground_truth: a COCO dict; its categories are the rows and columns, in their order.
        detections: COCO results.
        score_threshold: detections below it are left out.
        iou_threshold: the least overlap of boxes for a match.

    Returns:
        int64 [C + 1, C + 1]: objects of class i found as class j; in the last column objects that
        were not found, in the last row detections where there is no object.
    """
    found = [d for d in detections if d["score"] >= score_threshold]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = prepared(ground_truth, found)
        params = evaluation.params
        params.useCats, params.iouThrs = 0, np.array([iou_threshold])
        params.maxDets = [max(1, len(found))]
        evaluation.evaluate()
    number = {c["id"]: i for i, c in enumerate(ground_truth["categories"])}
    nothing = len(number)
    matrix = np.zeros((nothing + 1, nothing + 1), dtype=np.int64)

    def objects(ids: Any) -> list[int]:
        annotations = evaluation.cocoGt.anns
        return [number[annotations[int(id)]["category_id"]] if id else nothing for id in ids]

    for image in filter(None, evaluation.evalImgs):
        counted = ~np.asarray(image["dtIgnore"][0], dtype=bool)
        labels = [number[evaluation.cocoDt.anns[id]["category_id"]] for id in image["dtIds"]]
        matched = objects(image["dtMatches"][0])
        np.add.at(matrix, (np.array(matched, int)[counted], np.array(labels, int)[counted]), 1)
        missed = (image["gtMatches"][0] == 0) & (np.asarray(image["gtIgnore"]) == 0)
        np.add.at(matrix, (np.array(objects(image["gtIds"]), int)[missed], nothing), 1)
    return matrix
