# SPDX-License-Identifier: MIT
"""mmcv's Soft-NMS, down to which of several equal scores it takes first."""

import torch
from torch import Tensor

from .thresholds import at_least, rounded_at_least, with_last_pixel

_METHODS = ("naive", "linear", "gaussian")


def softnms(boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
            min_score: float, method: int, offset: int) -> Tensor:  # fmt: skip
    """Indices in the order of selection; writes the boxes with their scores into ``dets``.

    A score is lowered where the IoU reaches the threshold. The best box stays, however low its
    score.
    """
    if not len(boxes):
        return torch.empty(0, dtype=torch.int64, device=boxes.device)
    floor = torch.tensor(min_score, dtype=torch.float32).item()
    rest = scores[scores >= floor]
    if len(rest) < 1:
        keep, values = scores.argmax()[None], scores.max()[None]
    elif len(rest.unique()) < len(rest):
        keep, values = _one_by_one(boxes, scores, iou_threshold, sigma, floor, method, offset)
    else:
        shifted = with_last_pixel(boxes) if offset else boxes
        bound = rounded_at_least(iou_threshold) if offset else at_least(iou_threshold, boxes)
        keep, values = torch.ops.detops.soft_nms(
            shifted, scores, bound, sigma, floor, _METHODS[method]
        )
    dets[: len(keep), :4] = boxes[keep]
    dets[: len(keep), 4] = values
    return keep


def _one_by_one(boxes: Tensor, scores: Tensor, threshold: float, sigma: float, floor: float,
                method: int, offset: int) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Among equal scores the first is taken, of a list in which the last fills each gap.

    Which one that is depends on all gaps before it, so the list is kept as mmcv keeps it.
    """
    threshold = torch.tensor(threshold, dtype=torch.float32).item()
    area = (boxes[:, 2:] - boxes[:, :2] + offset).prod(1)
    order, score = torch.arange(len(boxes), device=boxes.device), scores.clone()
    keep, values = [], []
    while len(order):
        # torch.max gives no promise about equal values.
        best = int((score == score.max()).nonzero()[0])
        first, value = order[best].clone(), score[best].clone()
        keep.append(first)
        values.append(value)
        order[best], score[best] = order[0], score[0]
        order, score = order[1:], score[1:]
        low = torch.maximum(boxes[first, :2], boxes[order, :2])
        high = torch.minimum(boxes[first, 2:], boxes[order, 2:])
        both = (high - low + offset).clamp(min=0).prod(1)
        iou = both / (area[first] + area[order] - both)
        if method == 2:
            weight = (-(iou * iou) / sigma).exp()
        else:
            weight = torch.where(iou >= threshold, 1 - iou if method == 1 else iou * 0, 1)
        score = score * weight
        stays = ~(score < floor)
        count = int(stays.sum())
        place = torch.arange(count, device=boxes.device)
        # What stays beyond the new end goes into the gaps before it, the last first.
        place[~stays[:count]] = count + stays[count:].nonzero()[:, 0].flip(0)
        order, score = order[place], score[place]
    return torch.stack(keep), torch.stack(values)
