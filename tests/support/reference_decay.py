"""Soft-NMS and matrix NMS, written as in their papers."""

import numpy as np


def iou_matrix(boxes, dtype):
    """Returns the IoU of all pairs, 0 where undefined."""
    b = boxes.astype(dtype)
    area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    zero = dtype(0)
    with np.errstate(all="ignore"):
        w = np.minimum(b[:, None, 2], b[:, 2]) - np.maximum(b[:, None, 0], b[:, 0])
        h = np.minimum(b[:, None, 3], b[:, 3]) - np.maximum(b[:, None, 1], b[:, 1])
        meet = np.maximum(zero, w) * np.maximum(zero, h)
        ratio = meet / (area[:, None] + area - meet)
    return np.where((meet > 0) & ~np.isnan(ratio), ratio, zero)


def soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, dtype=np.float32):
    """Runs the loop of the paper, one box at a time, with scores and overlaps in `dtype`."""
    iou = iou_matrix(boxes, dtype)
    left = {i: s for i, s in enumerate(scores.astype(dtype)) if s >= dtype(min_score)}
    keep, kept_scores = [], []
    while left:
        best = max(left, key=lambda i: (left[i], -i))
        keep.append(best)
        kept_scores.append(left.pop(best))
        for i in list(left):
            if method == "gaussian":
                weight = np.exp(-(iou[best, i] * iou[best, i]) / dtype(sigma))
            elif float(iou[best, i]) > iou_threshold:
                weight = dtype(1) - iou[best, i] if method == "linear" else dtype(0)
            else:
                weight = dtype(1)
            left[i] = left[i] * weight
            if not left[i] >= dtype(min_score):
                del left[i]
    return np.array(keep, dtype=np.int64), np.array(kept_scores, dtype=dtype)


def matrix_nms(boxes, scores, idxs, sigma, min_score, method):
    """Computes the matrices of the paper in float64, with undefined values replaced."""
    order = np.argsort(-scores, kind="stable")
    same = idxs[order][:, None] == idxs[order]
    iou = np.triu(iou_matrix(boxes[order], np.float64) * same, k=1)
    most = np.tile(iou.max(0), (len(iou), 1)).T
    if method == "gaussian":
        decay = np.exp(-sigma * (iou**2 - most**2))
    else:
        with np.errstate(all="ignore"):
            decay = (1 - iou) / (1 - most)
        decay[np.isnan(decay)] = 1
    rescored = np.empty(len(scores))
    rescored[order] = scores[order] * decay.min(0)
    keep = np.flatnonzero(rescored >= min_score)
    keep = keep[np.argsort(-rescored[keep], kind="stable")]
    return keep, rescored[keep]
