# SPDX-License-Identifier: MIT
"""mmcv's Soft-NMS, including its order of equal scores."""

import torch
from torch import Tensor

from .thresholds import at_least, rounded_at_least, with_last_pixel

_METHODS = ("naive", "linear", "gaussian")


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:  # fmt: skip
    """Returns indices in selection order, and writes the boxes with their scores into ``dets``.

    A score is reduced if the IoU reaches the threshold. The best box is always kept, even if its
    score is low.
    """
    if not len(boxes):
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    rounded_min_score = torch.tensor(min_score, dtype=torch.float32).item()
    candidates = scores[scores >= rounded_min_score]
    if len(candidates.unique()) < len(candidates) or _may_have_nan(boxes, scores, offset):
        keep, values = _select_like_mmcv(
            boxes, scores, iou_threshold, sigma, rounded_min_score, method, offset
        )
    elif len(candidates) < 1:
        keep, values = scores.argmax()[None], scores.max()[None]
    else:
        shifted = with_last_pixel(boxes) if offset else boxes
        bound = rounded_at_least(iou_threshold) if offset else at_least(iou_threshold, boxes)
        keep, values = torch.ops.detops.soft_nms(
            shifted, scores, bound, sigma, rounded_min_score, _METHODS[method]
        )
    dets[: len(keep), :4] = boxes[keep]
    dets[: len(keep), 4] = values
    return keep


def _may_have_nan(boxes: Tensor, scores: Tensor, offset: int) -> bool:
    """Returns whether a score or an IoU may be NaN; a NaN score is never below the minimum."""
    area = _areas(boxes, offset)
    is_degenerate = int((area == 0).sum()) > 1 or bool((area < 0).any())
    return is_degenerate or not bool(area.isfinite().all()) or bool(scores.isnan().any())


def _areas(boxes: Tensor, offset: int) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)


def _first_best(score: Tensor) -> int:
    """Returns the result of mmcv's search with ``>``, which a leading NaN score stops."""
    if score[0].isnan():
        return 0
    comparable = score.nan_to_num(-torch.inf, torch.inf, -torch.inf)
    # torch.max does not define which of several equal values it returns.
    return int((comparable == comparable.max()).nonzero()[0])


def _select_like_mmcv(boxes: Tensor, scores: Tensor, threshold: float, sigma: float,
                      min_score: float, method: int,
                      offset: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Selects the first of equal scores, from a list in which the last entry fills each gap.

    The order depends on all earlier gaps, so this maintains the list exactly as mmcv does.
    """
    threshold = torch.tensor(threshold, dtype=torch.float32).item()
    area = _areas(boxes, offset)
    order, score = torch.arange(len(boxes), device=boxes.device), scores.clone()
    keep, values = [], []
    while len(order):
        best = _first_best(score)
        first, value = order[best].clone(), score[best].clone()
        keep.append(first)
        values.append(value)
        order[best], score[best] = order[0], score[0]
        order, score = order[1:], score[1:]
        low = torch.maximum(boxes[first, :2], boxes[order, :2])
        high = torch.minimum(boxes[first, 2:], boxes[order, 2:])
        intersection = (high - low + offset).clamp(min=0).prod(1)
        iou = intersection / (area[first] + area[order] - intersection)
        if method == 2:
            weight = (-(iou * iou) / sigma).exp()
        else:
            weight = torch.where(iou >= threshold, 1 - iou if method == 1 else iou * 0, 1)
        score = score * weight
        is_kept = ~(score < min_score)
        count = int(is_kept.sum())
        source = torch.arange(count, device=boxes.device)
        # Entries to keep beyond the new end move into the gaps before it, the last entry first.
        source[~is_kept[:count]] = count + is_kept[count:].nonzero()[:, 0].flip(0)
        order, score = order[source], score[source]
    return torch.stack(keep), torch.stack(values)
