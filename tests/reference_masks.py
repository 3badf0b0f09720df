"""Slow, obvious versions of the ops on masks: the oracles."""

import math

import torch


def masks_to_boxes(masks):
    """Every pixel of every mask."""
    boxes = torch.zeros(len(masks), 4)
    for n, mask in enumerate(masks.cpu().tolist()):
        found = [(x, y) for y, row in enumerate(mask) for x, value in enumerate(row) if value != 0]
        if found:
            columns, rows = zip(*found, strict=True)
            boxes[n] = torch.tensor([min(columns), min(rows), max(columns), max(rows)])
    return boxes


def _along(first, last, cells, pixel):
    """The weights of the cells, and whether a mask reaches the pixel at all."""
    if not (last > first and math.isfinite(last - first)):
        return {}
    x = (pixel + 0.5 - first) / (last - first) * cells - 0.5
    if not -1 < x < cells:
        return {}
    low = math.floor(x)
    return {low: 1 - (x - low), low + 1: x - low}


def paste(masks, boxes, height, width):
    """Every pixel in float64; -inf where a mask does not reach."""
    result = torch.full((len(masks), height, width), -math.inf, dtype=torch.float64)
    h, w = masks.shape[-2:]
    values = masks.double().reshape(-1, h, w).tolist()
    for n, (x1, y1, x2, y2) in enumerate(boxes.double().tolist()):
        for i in range(height):
            rows = _along(y1, y2, h, i)
            for j in range(width) if rows else ():
                columns = _along(x1, x2, w, j)
                if columns:
                    result[n, i, j] = sum(
                        values[n][y][x] * rows[y] * columns[x]
                        for y in rows
                        for x in columns
                        if 0 <= y < h and 0 <= x < w
                    )
    return result
