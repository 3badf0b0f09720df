# SPDX-License-Identifier: MIT
"""Precision-recall curves and confusion matrices, with matching by pycocotools."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np

from .evaluate import accumulate, build_coco_eval

SHOWN_IOUS = (0.5, 0.75)


def precision_recall(
    ground_truth: dict[str, Any], detections: list[dict[str, Any]]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Computes box precision over recall, averaged over the classes that have objects.

    Args:
        ground_truth: a COCO dict.
        detections: COCO results.

    Returns:
        The recalls [101], from 0 to 1, and the precisions [101] by name: at IoU 0.5, at IoU 0.75
        and averaged over COCO's ten thresholds. There are no precisions if there are no objects.
    """
    # COCO's limit of 100 would truncate the curve of images with more objects.
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
    """Counts how often an object of one class is detected as another.

    Detections are matched to objects regardless of class, highest score first, as COCO does within
    one class. Crowds and detections matched to them are not counted.

    Args:
        ground_truth: a COCO dict; its categories are the rows and columns, in the same order.
        detections: COCO results.
        score_threshold: detections below it are skipped.
        iou_threshold: minimum box IoU of a match.

    Returns:
        int64 [C + 1, C + 1]: number of objects of class i that were detected as class j. The last
        column counts objects that were not detected, the last row detections without an object.
    """
    found = [d for d in detections if d["score"] >= score_threshold]
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = build_coco_eval(ground_truth, found)
        params = evaluation.params
        params.useCats, params.iouThrs = 0, np.array([iou_threshold])
        params.maxDets = [max(1, len(found))]
        evaluation.evaluate()
    class_index = {c["id"]: i for i, c in enumerate(ground_truth["categories"])}
    background = len(class_index)
    matrix = np.zeros((background + 1, background + 1), dtype=np.int64)

    def objects(ids: Any) -> list[int]:
        annotations = evaluation.cocoGt.anns
        return [
            class_index[annotations[int(id)]["category_id"]] if id else background for id in ids
        ]

    for image in filter(None, evaluation.evalImgs):
        counted = ~np.asarray(image["dtIgnore"][0], dtype=bool)
        labels = [class_index[evaluation.cocoDt.anns[id]["category_id"]] for id in image["dtIds"]]
        matched = objects(image["dtMatches"][0])
        np.add.at(matrix, (np.array(matched, int)[counted], np.array(labels, int)[counted]), 1)
        missed = (image["gtMatches"][0] == 0) & (np.asarray(image["gtIgnore"]) == 0)
        np.add.at(matrix, (np.array(objects(image["gtIds"]), int)[missed], background), 1)
    return matrix
