"""Slow, obvious versions of mmcv ops that differ from ours, in float32 like its kernels."""

import math

import numpy as np
import torch
from reference_rotated import iou as rotated_iou

F = np.float32


def iou(a, b, offset=0):
    """Returns the IoU; with ``offset`` 1 a box contains its last pixel."""
    one = F(offset)
    w = max(F(0), min(a[2], b[2]) - max(a[0], b[0]) + one)
    h = max(F(0), min(a[3], b[3]) - max(a[1], b[1]) + one)
    area = [(c[2] - c[0] + one) * (c[3] - c[1] + one) for c in (a, b)]
    with np.errstate(all="ignore"):
        return w * h / (area[0] + area[1] - w * h)


def nms(boxes, scores, threshold, offset=0, at_threshold=False):
    """Returns indices by descending score; ``at_threshold`` also suppresses at the threshold."""
    boxes, threshold = boxes.numpy(), F(threshold)
    kept = []
    for i in scores.sort(descending=True, stable=True).indices.tolist():
        overlaps = [iou(boxes[k], boxes[i], offset) for k in kept]
        if not any(o >= threshold if at_threshold else o > threshold for o in overlaps):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def nms_match(dets, threshold):
    """Returns groups of indices, the kept box first; reaching the threshold suppresses a box."""
    boxes, threshold = dets[:, :4].numpy(), F(threshold)
    remaining = dets[:, 4].sort(descending=True, stable=True).indices.tolist()
    groups = []
    while remaining:
        kept, *candidates = remaining
        suppressed = [k for k in candidates if iou(boxes[kept], boxes[k]) >= threshold]
        groups.append([kept, *suppressed])
        remaining = [k for k in candidates if k not in suppressed]
    return groups


def soft_nms(boxes, scores, threshold, sigma, min_score, method, offset=0):
    """Keeps a list: the first box replaces the selected one, the last box fills a gap."""
    remaining = [
        (box, F(score), i) for i, (box, score) in enumerate(zip(boxes, scores, strict=True))
    ]
    selected = []
    while remaining:
        best = max(range(len(remaining)), key=lambda k: (remaining[k][1], -k))
        box, score, index = remaining[best]
        remaining[best] = remaining[0]
        remaining = remaining[1:]
        selected.append((index, score))
        k = 0
        while k < len(remaining):
            other, value, i = remaining[k]
            overlap = iou(box, other, offset)
            weight = F(1)
            if method == "gaussian":
                weight = np.exp(-(overlap * overlap) / F(sigma))
            elif overlap >= F(threshold):
                weight = F(0) if method == "naive" else F(1) - overlap
            remaining[k] = (other, F(value * weight), i)
            if remaining[k][1] < F(min_score):
                remaining[k] = remaining[-1]
                remaining.pop()
            else:
                k += 1
    keep, values = zip(*selected, strict=True)
    return torch.tensor(keep), torch.tensor(np.array(values))


def box_iou_rotated(boxes1, boxes2, mode="iou", clockwise=True):
    """Returns overlaps of boxes in radians; ``iof`` divides by the area of the first box."""
    sign = -1 if clockwise else 1

    def degrees(box):
        return (*box[:4], sign * math.degrees(box[4]))

    rows = []
    for a in boxes1.double().tolist():
        row = []
        for b in boxes2.double().tolist():
            value = rotated_iou(degrees(a), degrees(b))
            areas = a[2] * a[3], b[2] * b[3]
            if mode == "iof":
                value = value * sum(areas) / (1 + value) / areas[0]
            row.append(value)
        rows.append(row)
    return torch.tensor(rows, dtype=torch.double).reshape(len(boxes1), len(boxes2))


def roi_pool(input, rois, size, scale):
    """Pools bins between unrounded corners; a box contains its last pixel."""
    maps, scale = input.numpy(), F(scale)
    height, width = maps.shape[2:]
    output = np.zeros((len(rois), maps.shape[1], *size), dtype=np.float32)
    argmax = np.zeros(output.shape, dtype=np.int32)
    for k, (image, x1, y1, x2, y2) in enumerate(rois.numpy()):
        x, y = x1 * scale, y1 * scale
        w, h = (x2 + F(1)) * scale - x, (y2 + F(1)) * scale - y
        if w <= 0 or h <= 0:
            continue
        for c in range(maps.shape[1]):
            for i in range(size[0]):
                for j in range(size[1]):
                    rows, cols = (
                        range(
                            min(max(math.floor(F(n) * (side / F(bins)) + start), 0), limit),
                            min(max(math.ceil(F(n + 1) * (side / F(bins)) + start), 0), limit),
                        )
                        for n, side, bins, start, limit in (
                            (i, h, size[0], y, height),
                            (j, w, size[1], x, width),
                        )
                    )
                    best, at = (F(-np.finfo(F).max), -1) if len(rows) and len(cols) else (0, -1)
                    for r in rows:
                        for q in cols:
                            if maps[int(image), c, r, q] > best:
                                best, at = maps[int(image), c, r, q], r * width + q
                    output[k, c, i, j], argmax[k, c, i, j] = best, at
    return torch.from_numpy(output), torch.from_numpy(argmax)


def _sample(plane, y, x):
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    dy, dx = y - y0, x - x0
    top = plane[y0, x0] * (1 - dx) + plane[y0, x1] * dx
    return top * (1 - dy) + (plane[y1, x0] * (1 - dx) + plane[y1, x1] * dx) * dy


def roi_align_rotated(input, rois, size, scale, sampling_ratio, aligned, clockwise):
    """Samples a grid rotated by radians; without ``aligned`` a side is at least a pixel."""
    maps = input.double().numpy()
    output = torch.zeros(len(rois), input.size(1), *size, dtype=torch.double)
    for k, (image, cx, cy, w, h, angle) in enumerate(rois.double().tolist()):
        cx, cy, w, h = cx * scale, cy * scale, w * scale, h * scale
        if aligned:
            cx, cy = cx - 0.5, cy - 0.5
        else:
            w, h = max(w, 1), max(h, 1)
        angle = -angle if clockwise else angle
        ny = sampling_ratio or math.ceil(h / size[0])
        nx = sampling_ratio or math.ceil(w / size[1])
        for i in range(size[0]):
            for j in range(size[1]):
                for iy in range(ny):
                    for ix in range(nx):
                        v = -h / 2 + (i + (iy + 0.5) / ny) * h / size[0]
                        u = -w / 2 + (j + (ix + 0.5) / nx) * w / size[1]
                        y = v * math.cos(angle) - u * math.sin(angle) + cy
                        x = v * math.sin(angle) + u * math.cos(angle) + cx
                        for c in range(input.size(1)):
                            output[k, c, i, j] += _sample(maps[int(image), c], y, x) / (ny * nx)
    return output


def sigmoid_focal_loss(input, target, gamma, alpha, weight=None):
    """Treats any class that is not one of the columns as background."""
    rows = []
    for x, t in zip(input.double(), target.tolist(), strict=True):
        row = []
        for c in range(len(x)):
            p = torch.sigmoid(x[c])
            if t == c:
                loss = -alpha * (1 - p) ** gamma * torch.log(p)
            else:
                loss = -(1 - alpha) * p**gamma * torch.log(1 - p)
            row.append(loss * (weight[t] if weight is not None and t < len(x) else 1))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def softmax_focal_loss(input, target, gamma, alpha, weight=None):
    """Ignores negative classes."""
    rows = []
    for x, t in zip(input.double().softmax(1), target.tolist(), strict=True):
        if t < 0:
            rows.append(x.sum() * 0)
            continue
        loss = -alpha * (1 - x[t]) ** gamma * torch.log(x[t])
        rows.append(loss * (weight[t] if weight is not None else 1))
    return torch.stack(rows)


def corners(plane, y, x):
    """Returns (row, column, weight) of a sample; empty if over a pixel outside the feature map."""
    height, width = plane.shape
    if y < -1 or y > height or x < -1 or x > width:
        return []
    y, x = max(y, 0.0), max(x, 0.0)
    top, left = min(int(y), height - 1), min(int(x), width - 1)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    y, x = (y if top < height - 1 else top), (x if left < width - 1 else left)
    down, across = y - top, x - left
    return [
        (top, left, (1 - down) * (1 - across)),
        (top, right, (1 - down) * across),
        (bottom, left, down * (1 - across)),
        (bottom, right, down * across),
    ]


def largest(plane, positions):
    """Returns the value of the first largest sample at positions (y, x), and its weights."""
    best, at = -math.inf, []
    for y, x in positions:
        weights = corners(plane, y, x)
        value = sum(float(plane[row, col]) * weight for row, col, weight in weights)
        if value > best:
            best, at = value, weights
    return best, at


def roi_align_max(x, rois, size, scale, ratio, aligned, slope):
    """Returns the maxima, and the input gradient if that of a maximum is ``slope(maximum)``."""
    shift = 0.5 if aligned else 0.0
    pooled, grad = x.new_zeros(len(rois), x.size(1), *size), torch.zeros_like(x)
    for k, (b, x1, y1, x2, y2) in enumerate(rois.tolist()):
        left, top = x1 * scale - shift, y1 * scale - shift
        w, h = x2 * scale - shift - left, y2 * scale - shift - top
        if not aligned:
            w, h = max(w, 1.0), max(h, 1.0)
        bin_h, bin_w = h / size[0], w / size[1]
        ny, nx = ratio or math.ceil(bin_h), ratio or math.ceil(bin_w)
        for c in range(x.size(1)):
            for i in range(size[0]):
                for j in range(size[1]):
                    positions = [
                        (
                            top + (i + (iy + 0.5) / ny) * bin_h,
                            left + (j + (ix + 0.5) / nx) * bin_w,
                        )
                        for iy in range(ny)
                        for ix in range(nx)
                    ]
                    value, at = largest(x[int(b), c], positions)
                    pooled[k, c, i, j] = value
                    for row, col, weight in at:
                        grad[int(b), c, row, col] += weight * slope(pooled[k, c, i, j])
    return pooled, grad


def border_align(x, boxes, pool_size, slope):
    """Returns the same as roi_align_max; accumulates the coordinates of a border step by step."""
    channels = x.size(1) // 4
    pooled, grad = x.new_zeros(len(x), channels, boxes.size(1), 4), torch.zeros_like(x)
    for b, k, border, c in np.ndindex(len(x), boxes.size(1), 4, channels):
        x1, y1, x2, y2 = boxes[b, k].tolist()
        step = ((x2 - x1) if border % 2 == 0 else (y2 - y1)) / pool_size
        col, row = (x1, y1) if border < 2 else (x2, y2)
        positions = []
        for _ in range(pool_size + 1):
            positions.append((row, col))
            col += (step, 0, -step, 0)[border]
            row += (0, step, 0, -step)[border]
        value, at = largest(x[b, border * channels + c], positions)
        pooled[b, c, k, border] = value
        for y, z, weight in at:
            grad[b, border * channels + c, y, z] += weight * slope(pooled[b, c, k, border])
    return pooled, grad


def _over_unit(low, high):
    """Returns the integrals of 1 - t and of t from low to high."""
    second = (high * high - low * low) / 2
    return high - low - second, second


def prroi_pool(x, rois, size, scale):
    """Integrates square by square between four pixels, with 0 outside the feature map."""
    maps = np.pad(x.double().numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    height, width = x.shape[2:]
    pooled = torch.zeros(len(rois), x.size(1), *size, dtype=torch.float64)
    for k, roi in enumerate(rois.double().tolist()):
        x1, y1, x2, y2 = (scale * v for v in roi[1:])
        w, h = max(x2 - x1, 0) / size[1], max(y2 - y1, 0) / size[0]
        for i, j in np.ndindex(*size):
            if w * h == 0:
                continue
            top, left = y1 + i * h, x1 + j * w
            for y in range(max(math.floor(top), -1), min(math.ceil(top + h), height)):
                rows = _over_unit(max(top - y, 0), min(top + h - y, 1))
                for z in range(max(math.floor(left), -1), min(math.ceil(left + w), width)):
                    cols = _over_unit(max(left - z, 0), min(left + w - z, 1))
                    for a, b in np.ndindex(2, 2):
                        pixels = torch.from_numpy(maps[int(roi[0]), :, y + 2 + a, z + 2 + b])
                        pooled[k, :, i, j] += rows[a] * cols[b] / (w * h) * pixels
    return pooled


def active_rotated_filter(input, indices):
    """Moves each weight to its position in each rotation, one filter after the other."""
    entries, rotations = indices[..., 0].numel(), indices.size(3)
    output = torch.zeros(len(input), rotations, input.size(1), entries, dtype=torch.double)
    for entry, targets in enumerate(indices.reshape(entries, rotations).tolist()):
        for rotation, target in enumerate(targets):
            output[:, rotation, :, target - 1] = input.flatten(2)[:, :, entry]
    return output.view(len(input) * rotations, -1, *input.shape[3:])


def rotated_feature_align(features, boxes, scale, points):
    """Aligns features to boxes (cy, cx, w, h, radians), clockwise."""
    maps, output = features.double().numpy(), features.double().clone()
    for n, i, j in torch.cartesian_prod(*map(torch.arange, boxes.shape[:3])).tolist():
        cy, cx, w, h, angle = boxes[n, i, j].double().tolist()
        corners = [(u * w / 2, v * h / 2) for u in (1, -1) for v in (1, -1)]
        for u, v in [(0, 0), *corners][:points]:
            y = (cy + u * math.sin(angle) + v * math.cos(angle)) * scale
            x = (cx + u * math.cos(angle) - v * math.sin(angle)) * scale
            for c in range(maps.shape[1]):
                output[n, c, i, j] += _sample(maps[n, c], y, x)
    return output


def riroi_align_rotated(features, rois, size, scale, samples, orientations, clockwise):
    """Pools RoIs in radians, then blends orientations, which ``clockwise`` does not reverse."""
    pooled = roi_align_rotated(features, rois, size, scale, samples, False, clockwise)
    output = torch.empty_like(pooled)
    for k, angle in enumerate(rois[:, 5].double().tolist()):
        units = angle * orientations / (2 * math.pi)
        fraction, lower = units - math.floor(units), math.floor(units)
        for c in range(features.size(1)):
            group, o = c - c % orientations, c % orientations
            first = group + (o - lower) % orientations
            second = group + (o - lower + 1) % orientations
            output[k, c] = (1 - fraction) * pooled[k, first] + fraction * pooled[k, second]
    return output
