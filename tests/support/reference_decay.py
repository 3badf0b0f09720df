"""Soft-NMS and matrix NMS, written as in their papers."""

import numpy as np
import torch
from reference import iou_matrix


def _overlaps(boxes, dtype):
    """Returns the IoU of all pairs, 0 where undefined."""
    iou = iou_matrix(boxes, dtype)
    return np.where(np.isnan(iou), dtype(0), iou)


def soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, dtype=np.float32):
    """Runs the loop of the paper, one box at a time, with scores and overlaps in `dtype`."""
    iou = _overlaps(boxes, dtype)
    rounded_scores = scores.numpy().astype(dtype)
    remaining = {
        i: s for i, s in enumerate(rounded_scores) if s >= dtype(min_score) and s > -np.inf
    }
    keep, kept_scores = [], []
    while remaining:
        best = max(remaining, key=lambda i: (remaining[i], -i))
        keep.append(best)
        kept_scores.append(remaining.pop(best))
        for i in list(remaining):
            if method == "gaussian":
                weight = np.exp(-(iou[best, i] * iou[best, i]) / dtype(sigma))
            elif float(iou[best, i]) > iou_threshold:
                weight = dtype(1) - iou[best, i] if method == "linear" else dtype(0)
            else:
                weight = dtype(1)
            with np.errstate(invalid="ignore"):  # infinity times 0
                remaining[i] = remaining[i] * weight
            if not remaining[i] >= dtype(min_score):
                del remaining[i]
    return torch.tensor(keep, dtype=torch.int64), torch.from_numpy(np.array(kept_scores, dtype))


def matrix_nms(boxes, scores, idxs, sigma, min_score, method):
    """Computes the matrices of the paper in float64, with undefined values replaced."""
    scores = scores.double().numpy()
    order = np.argsort(-scores, kind="stable")
    labels = idxs[order].numpy()
    same = labels[:, None] == labels
    iou = np.triu(_overlaps(boxes[order], np.float64) * same, k=1)
    max_iou = np.tile(iou.max(0, initial=0), (len(iou), 1)).T
    with np.errstate(all="ignore"):
        if method == "gaussian":
            decay = np.exp(-sigma * (iou**2 - max_iou**2))
        else:
            decay = (1 - iou) / (1 - max_iou)
            decay[np.isnan(decay)] = 1
        rescored = np.empty(len(scores))
        rescored[order] = scores[order] * decay.min(0, initial=1)
    keep = np.flatnonzero((rescored >= min_score) & (rescored > -np.inf))
    keep = keep[np.argsort(-rescored[keep], kind="stable")]
    return torch.from_numpy(keep), torch.from_numpy(rescored[keep])
