"""Weighted box fusion: merges the boxes of several detectors."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..registration import CONTRACTS, unscriptable
from ._shared import undifferentiable

_weighted_box_fusion = undifferentiable("weighted_box_fusion")
# The contract for the lists of the public function; the op receives them concatenated.
_LIST_CONTRACT = replace(
    CONTRACTS["weighted_box_fusion"],
    arguments=["boxes", "scores", "labels", "weights"],
    types=["Tensor[]", "Tensor[]", "Tensor[]", "float[]?"],
    tensors=dict.fromkeys(("boxes", "scores", "labels"), "Tensor[]"),
)


@unscriptable
def weighted_box_fusion(
    boxes: Sequence[Tensor],
    scores: Sequence[Tensor],
    labels: Sequence[Tensor],
    weights: Sequence[float] | None = None,
    iou_threshold: float = 0.55,
    skip_box_threshold: float = 0.0,
    conf_type: str = "avg",
    allows_overflow: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Fuses the boxes of several detectors, or of several passes over an image.

    See "Weighted boxes fusion: Ensembling boxes from different object detection models" (Solovyev,
    Wang and Gabruseva, 2021), section 3. Scores are multiplied by the weights of their models.
    Within a label, boxes are visited by descending score, ties in input order. A box joins the
    fused box that it overlaps most (the first of equal ones) if that IoU is strictly greater than
    ``iou_threshold``; otherwise it starts a new one. A fused box is the mean of its members,
    weighted by their scores, and moves as they join. Let c be the weighted scores of the members, w
    the weights of their models, n the number of members and T the number of models. The score of a
    fused box is:

    - ``"avg"``: mean(c) min(n, T) / (sum of all weights), or with ``allows_overflow``
      sum(c) / (sum of all weights), which may be above 1
    - ``"max"``: max(c) / the largest weight
    - ``"box_and_model_avg"``: sum(c) / sum(w), times the fraction of the sum of all weights that
      belongs to models that found the box
    - ``"absent_model_aware_avg"``: sum(c) / (sum(w) + sum of the weights of the other models)

    Everything is computed in float64, with the same result on every device and instruction set.
    Coordinates may have any scale. Boxes are skipped if their area is not positive and finite, or
    if their score is below ``skip_box_threshold``, not positive, or not finite.

    Args:
        boxes: for each model, ``[N_i, 4]`` as (x1, y1, x2, y2).
        scores: for each model, ``[N_i]``.
        labels: for each model, integers ``[N_i]``.
        weights: a positive number for each model, at most 64 of them; 1 for each by default.
        iou_threshold: overlap above which boxes are fused.
        skip_box_threshold: score, before weighting, below which a box is skipped.
        conf_type: ``"avg"``, ``"max"``, ``"box_and_model_avg"`` or ``"absent_model_aware_avg"``.
        allows_overflow: see ``"avg"``.

    Returns:
        Boxes ``[K, 4]``, scores ``[K]`` and labels ``[K]``, in the promoted dtypes of all models,
        by descending score, then by label, then in the order in which they were started. Not
        differentiable.

    Raises:
        ValueError: no models, lists of different lengths, or a model with different numbers of
            boxes, scores and labels.
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold, more
            than 64 models, a weight that is not positive and finite, or an unknown ``conf_type``.

    Example:
        >>> one = torch.tensor([[0.0, 0, 10, 10], [40, 40, 60, 60]])
        >>> other = torch.tensor([[2.0, 0, 12, 10]])
        >>> scores = [torch.tensor([0.75, 0.5]), torch.tensor([0.25])]
        >>> labels = [torch.tensor([1, 1]), torch.tensor([1])]
        >>> boxes, scores, labels = weighted_box_fusion([one, other], scores, labels)
        >>> boxes
        tensor([[ 0.5000,  0.0000, 10.5000, 10.0000],
                [40.0000, 40.0000, 60.0000, 60.0000]])
        >>> scores, labels
        (tensor([0.5000, 0.2500]), tensor([1, 1]))
    """
    rest = iou_threshold, skip_box_threshold, conf_type, allows_overflow
    try:
        return _fuse(boxes, scores, labels, weights, *rest)
    except Exception as error:
        raise _LIST_CONTRACT.explain_error((boxes, scores, labels, weights), error) from None


def _fuse(
    boxes: Sequence[Tensor],
    scores: Sequence[Tensor],
    labels: Sequence[Tensor],
    weights: Sequence[float] | None,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    if not len(boxes) == len(scores) == len(labels) > 0:
        raise ValueError(
            "detops.weighted_box_fusion: boxes, scores and labels must be lists of one tensor per "
            f"model, got {len(boxes)}, {len(scores)} and {len(labels)}"
        )
    if weights is None:
        weights = [1.0] * len(boxes)
    if len(weights) != len(boxes):
        raise ValueError(
            f"detops.weighted_box_fusion: weights must be {len(boxes)} numbers, got {len(weights)}"
        )
    for i, (b, s, c) in enumerate(zip(boxes, scores, labels, strict=True)):
        if not b.shape[:1] == s.shape == c.shape:
            raise ValueError(
                f"detops.weighted_box_fusion: boxes[{i}], scores[{i}] and labels[{i}] must be "
                f"[N, 4], [N] and [N], got {list(b.shape)}, {list(s.shape)} and {list(c.shape)}"
            )
    models = torch.cat([torch.full_like(c, i, dtype=torch.int64) for i, c in enumerate(labels)])
    concatenated = (torch.cat(list(parts)) for parts in (boxes, scores, labels))
    return _weighted_box_fusion(*concatenated, models, list(weights), *rest)
