# SPDX-License-Identifier: MIT
"""Non-maximum suppression."""

from typing import Any

from onnxscript import opset20 as op

from .values import HIGHEST, INT64, column, constant, float32, number

# Larger than any number of boxes.
_UNLIMITED = 2**31 - 1


def _select(
    name: str,
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    score_threshold: float | None,
    max_output: Any = _UNLIMITED,
) -> Any:
    """Applies NMS to boxes ``[N, 4]`` with scores ``[C, N]``.

    The result holds the indices of the kept boxes, class by class, best first.
    """
    if not 0 <= iou_threshold <= 1:
        raise ValueError(
            f"detops.{name}: iou_threshold must be in [0, 1] for ONNX's NonMaxSuppression, got "
            f"{iou_threshold}"
        )
    min_score = -HIGHEST if score_threshold is None else float(score_threshold)
    rows = op.NonMaxSuppression(
        op.Unsqueeze(float32(boxes), constant([0])),
        op.Unsqueeze(scores, constant([0])),
        number(max_output),
        constant(float(iou_threshold)),
        constant(min_score),
    )
    return column(rows, 2)  # rows are (image, class, box)


def nms(
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    score_threshold: float | None,
    max_output: Any,
) -> Any:
    """Translates to NonMaxSuppression with one class."""
    scores = op.Unsqueeze(float32(scores), constant([0]))
    limit = _UNLIMITED if max_output is None else max_output
    return _select("nms", boxes, scores, iou_threshold, score_threshold, limit)


def batched_nms(
    boxes: Any,
    scores: Any,
    idxs: Any,
    iou_threshold: float,
    score_threshold: float | None,
    max_output: Any,
) -> Any:
    """Translates each label to a class, then sorts the kept boxes of all classes.

    The usual offset for the boxes of each class would cost precision.
    """
    scores, idxs = float32(scores), op.Cast(idxs, to=INT64)
    labels, _, _, _ = op.Unique(idxs, sorted=1)
    is_class = op.Equal(op.Unsqueeze(labels, constant([1])), op.Unsqueeze(idxs, constant([0])))
    class_scores = op.Where(is_class, scores, constant(-HIGHEST))
    kept = _select("batched_nms", boxes, class_scores, iou_threshold, score_threshold)
    # Sorts by index first, so that equal scores keep the order of the input.
    kept, _ = op.TopK(kept, op.Shape(kept), largest=0)
    count = op.Shape(kept)
    if max_output is not None:
        count = op.Min(count, number(max_output))
    _, order = op.TopK(op.Gather(scores, kept), count)
    return op.Gather(kept, order)
