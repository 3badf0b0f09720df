# SPDX-License-Identifier: MIT
"""Non-maximum suppression."""

from typing import Any

from onnxscript import opset20 as op

from .values import HIGHEST, INT64, column, constant, float32, number

# More than there ever are.
_MANY = 2**31 - 1


def _selected(
    name: str,
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    score_threshold: float | None,
    most: Any = _MANY,
) -> Any:
    """Of boxes ``[N, 4]`` and scores ``[C, N]`` those that stay, class by class, best first."""
    if not 0 <= iou_threshold <= 1:
        raise ValueError(
            f"detops.{name}: iou_threshold must be in [0, 1] for ONNX's NonMaxSuppression, got "
            f"{iou_threshold}"
        )
    least = -HIGHEST if score_threshold is None else float(score_threshold)
    rows = op.NonMaxSuppression(
        op.Unsqueeze(float32(boxes), constant([0])),
        op.Unsqueeze(scores, constant([0])),
        number(most),
        constant(float(iou_threshold)),
        constant(least),
    )
    return column(rows, 2)  # of (image, class, box)


def nms(
    boxes: Any,
    scores: Any,
    iou_threshold: float,
    score_threshold: float | None,
    max_output: Any,
) -> Any:
    """ONNX's operator, with one class."""
    scores = op.Unsqueeze(float32(scores), constant([0]))
    most = _MANY if max_output is None else max_output
    return _selected("nms", boxes, scores, iou_threshold, score_threshold, most)


def batched_nms(
    boxes: Any,
    scores: Any,
    idxs: Any,
    iou_threshold: float,
    score_threshold: float | None,
    max_output: Any,
) -> Any:
    """Each label that occurs is a class; what stays of all classes is sorted afterwards.

    Moving the boxes of each class to a place of their own, as is often done, would cost bits.
    """
    scores, idxs = float32(scores), op.Cast(idxs, to=INT64)
    labels, _, _, _ = op.Unique(idxs, sorted=1)
    of_class = op.Equal(op.Unsqueeze(labels, constant([1])), op.Unsqueeze(idxs, constant([0])))
    by_class = op.Where(of_class, scores, constant(-HIGHEST))
    kept = _selected("batched_nms", boxes, by_class, iou_threshold, score_threshold)
    # In the order of the input first, so that equal scores keep it.
    kept, _ = op.TopK(kept, op.Shape(kept), largest=0)
    count = op.Shape(kept)
    if max_output is not None:
        count = op.Min(count, number(max_output))
    _, order = op.TopK(op.Gather(scores, kept), count)
    return op.Gather(kept, order)
