"""Slow weighted box fusion: section 3 of the paper, one box at a time, with cluster lists."""

import math

import torch


def _iou(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    if width <= 0 or height <= 0:
        return 0.0
    intersection = width * height
    return intersection / (
        (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - intersection
    )


def _is_valid(box, score, min_score):
    positive = box[2] > box[0] and box[3] > box[1] and score > 0 and score >= min_score
    return positive and all(math.isfinite(x) for x in (*box, score))


def _mean(members):
    total = sum(c for _, c, _ in members)
    return [sum(c * box[k] for box, c, _ in members) / total for k in range(4)]


def _score(members, weights, conf_type, allows_overflow):
    confidences = [c for _, c, _ in members]
    member_weights = sum(weights[model] for _, _, model in members)
    models = {model for _, _, model in members}
    model_weights = sum(weights[model] for model in models)
    if conf_type == "max":
        return max(confidences) / max(weights)
    if conf_type == "box_and_model_avg":
        return sum(confidences) / member_weights * model_weights / sum(weights)
    if conf_type == "absent_model_aware_avg":
        return sum(confidences) / (member_weights + sum(weights) - model_weights)
    count = len(members) if allows_overflow else min(len(members), len(weights))
    return sum(confidences) / len(members) * count / sum(weights)


def weighted_box_fusion(
    boxes,
    scores,
    labels,
    weights=None,
    iou_threshold=0.55,
    skip_box_threshold=0.0,
    conf_type="avg",
    allows_overflow=False,
):
    """Returns boxes and scores in float64, labels in int64."""
    weights = [1.0] * len(boxes) if weights is None else weights
    by_label = {}
    for model, (model_boxes, model_scores, model_labels) in enumerate(
        zip(boxes, scores, labels, strict=True)
    ):
        found = model_boxes.double().tolist(), model_scores.double().tolist(), model_labels.tolist()
        for box, score, label in zip(*found, strict=True):
            if _is_valid(box, score, skip_box_threshold):
                by_label.setdefault(label, []).append((box, score * weights[model], model))
    results = []
    for label in sorted(by_label):
        clusters = []
        for member in sorted(by_label[label], key=lambda m: -m[1]):
            overlaps = [_iou(_mean(members), member[0]) for members in clusters]
            best = max(overlaps, default=-1)
            if best > iou_threshold:
                clusters[overlaps.index(best)].append(member)
            else:
                clusters.append([member])
        for members in clusters:
            score = _score(members, weights, conf_type, allows_overflow)
            results.append((_mean(members), score, label))
    results.sort(key=lambda r: -r[1])
    return (
        torch.tensor([box for box, _, _ in results], dtype=torch.double).view(-1, 4),
        torch.tensor([score for _, score, _ in results], dtype=torch.double),
        torch.tensor([label for _, _, label in results], dtype=torch.int64),
    )
