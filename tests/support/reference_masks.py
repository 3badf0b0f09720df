"""Slow, obvious versions of the ops on masks: the oracles."""

import math

import torch


def masks_to_boxes(masks):
    """Scans every pixel of every mask."""
    boxes = torch.zeros(len(masks), 4)
    for n, mask in enumerate(masks.cpu().tolist()):
        found = [(x, y) for y, row in enumerate(mask) for x, value in enumerate(row) if value != 0]
        if found:
            columns, rows = zip(*found, strict=True)
            boxes[n] = torch.tensor([min(columns), min(rows), max(columns), max(rows)])
    return boxes


def _axis_weights(first, last, cells, pixel):
    """Returns the weights of the cells, or an empty dict if the mask misses the pixel."""
    if not (last > first and math.isfinite(last - first)):
        return {}
    x = (pixel + 0.5 - first) / (last - first) * cells - 0.5
    if not -1 < x < cells:
        return {}
    low = math.floor(x)
    return {low: 1 - (x - low), low + 1: x - low}


def paste(masks, boxes, height, width):
    """Pastes every pixel in float64; -inf where the mask does not reach."""
    result = torch.full((len(masks), height, width), -math.inf, dtype=torch.float64)
    h, w = masks.shape[-2:]
    values = masks.double().reshape(-1, h, w).tolist()
    for n, (x1, y1, x2, y2) in enumerate(boxes.double().tolist()):
        for i in range(height):
            rows = _axis_weights(y1, y2, h, i)
            for j in range(width) if rows else ():
                columns = _axis_weights(x1, x2, w, j)
                if columns:
                    result[n, i, j] = sum(
                        values[n][y][x] * rows[y] * columns[x]
                        for y in rows
                        for x in columns
                        if 0 <= y < h and 0 <= x < w
                    )
    return result


def mask_iou(masks1, masks2, mode="iou"):
    """Compares sets of pixels pair by pair; divides in float64 and rounds."""
    pixels = [
        [set(m.flatten().nonzero().squeeze(1).tolist()) for m in masks.cpu()]
        for masks in (masks1, masks2)
    ]
    result = torch.zeros(len(masks1), len(masks2), dtype=torch.float64)
    for i, a in enumerate(pixels[0]):
        for j, b in enumerate(pixels[1]):
            denominator = len(a) if mode == "iof" else len(a | b)
            result[i, j] = len(a & b) / denominator if denominator else 0
    return result.float()


def mask_nms(masks, scores, iou_threshold):
    """Compares one mask at a time with the kept masks."""
    iou = mask_iou(masks, masks).double()
    rows = scores.double().tolist()
    order = sorted(
        range(len(rows)),
        key=lambda i: (not math.isnan(rows[i]), -rows[i] if rows[i] == rows[i] else 0),
    )
    kept = []
    for i in order:
        if not any(iou[k, i] > iou_threshold for k in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)
