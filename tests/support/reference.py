"""Slow, obvious versions of the ops: the oracles."""

import math

import numpy as np
import torch
import torch.nn.functional as F


def nms(boxes, scores, iou_threshold, dtype=np.float32):
    """Applies the NMS contract literally, one pair at a time, with IoU rounded to `dtype`."""
    b = boxes.cpu().to(torch.float64).numpy().astype(dtype)
    s = scores.cpu().to(torch.float64).numpy()
    # NaN first, then descending, ties in input order.
    order = sorted(
        range(len(s)), key=lambda i: (not math.isnan(s[i]), -s[i] if s[i] == s[i] else 0)
    )
    kept = []
    with np.errstate(all="ignore"):
        for i in order:
            if not any(float(_iou(b[k], b[i])) > iou_threshold for k in kept):
                kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def _iou(a, b):
    zero = a.dtype.type(0)
    w = max(zero, min(a[2], b[2]) - max(a[0], b[0]))
    h = max(zero, min(a[3], b[3]) - max(a[1], b[1]))
    overlap = w * h
    area = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1])
    return overlap / (area - overlap)


def iou_matrix(boxes, dtype=np.float32):
    """Returns the IoU of all pairs, computed in `dtype`; NaN where undefined."""
    b = boxes.cpu().to(torch.float64).numpy().astype(dtype)
    zero = dtype(0)
    with np.errstate(all="ignore"):
        area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        w = np.minimum(b[:, None, 2], b[:, 2]) - np.maximum(b[:, None, 0], b[:, 0])
        h = np.minimum(b[:, None, 3], b[:, 3]) - np.maximum(b[:, None, 1], b[:, 1])
        overlap = np.maximum(zero, w) * np.maximum(zero, h)
        return overlap / (area[:, None] + area - overlap)


def nms_from_overlaps(scores, overlaps, threshold):
    """Visits boxes by score, NaN first, ties in input order; keeps those no kept box suppresses."""
    s = scores.tolist()
    suppresses = (torch.as_tensor(overlaps).double() > threshold).tolist()
    kept = []
    for i in sorted(range(len(s)), key=lambda i: (s[i] == s[i], -s[i] if s[i] == s[i] else 0)):
        if not any(suppresses[k][i] for k in kept):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


def batched_nms(boxes, scores, idxs, iou_threshold, nms):
    """Runs a given `nms` per class and merges the results by a stable sort of the scores."""
    keep = torch.zeros(len(boxes), dtype=torch.bool)
    for label in idxs.unique():
        members = torch.nonzero(idxs == label).squeeze(1)
        keep[members[nms(boxes[members], scores[members], iou_threshold)]] = True
    order = torch.sort(scores, stable=True, descending=True).indices
    return order[keep[order]]


def _sample(maps, y, x):
    """Returns the bilinear sample of each feature map of ``[..., H, W]``."""
    h, w = maps.shape[-2:]
    if not (-1 <= y <= h and -1 <= x <= w):
        return np.zeros(maps.shape[:-2])
    y, x = min(max(y, 0), h - 1), min(max(x, 0), w - 1)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
    fy, fx = y - y0, x - x0
    top = maps[..., y0, x0] * (1 - fx) + maps[..., y0, x1] * fx
    bottom = maps[..., y1, x0] * (1 - fx) + maps[..., y1, x1] * fx
    return top * (1 - fy) + bottom * fy


def roi_align(input, rois, output_size, spatial_scale, sampling_ratio, aligned):
    """Averages every sample of every bin in float64."""
    ph, pw = output_size
    maps = input.double().numpy()
    out = np.zeros((len(rois), maps.shape[1], ph, pw))
    for k, (b, x1, y1, x2, y2) in enumerate(rois.double().tolist()):
        shift = 0.5 if aligned else 0.0
        x, y = x1 * spatial_scale - shift, y1 * spatial_scale - shift
        w, h = x2 * spatial_scale - shift - x, y2 * spatial_scale - shift - y
        if not aligned:
            w, h = max(w, 1.0), max(h, 1.0)
        ny = sampling_ratio if sampling_ratio > 0 else math.ceil(h / ph)
        nx = sampling_ratio if sampling_ratio > 0 else math.ceil(w / pw)
        for i in range(ph):
            for j in range(pw):
                for iy in range(ny):
                    for ix in range(nx):
                        down = (i + (iy + 0.5) / ny) * h / ph
                        across = (j + (ix + 0.5) / nx) * w / pw
                        out[k, :, i, j] += _sample(maps[int(b)], y + down, x + across) / (nx * ny)
    return torch.from_numpy(out)


def roi_levels(boxes, levels, canonical_scale=224, canonical_level=4, first_level=2):
    """Applies equation 1 of "Feature Pyramid Networks"; levels count from 0."""
    side = ((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).double().sqrt()
    level = torch.floor(canonical_level + torch.log2(side / canonical_scale) + 1e-6)
    return (level - first_level).clamp(0, levels - 1).long()


def random_boxes(count, size=100.0, generator=None, dtype=torch.float32):
    """Returns `count` boxes with positive sides inside a square of `size`."""
    corner = torch.rand(count, 2, generator=generator, dtype=dtype) * size * 0.7
    sides = 1 + torch.rand(count, 2, generator=generator, dtype=dtype) * size * 0.3
    return torch.cat([corner, corner + sides], dim=1)


def mlp(input, hidden_weights, hidden_bias, output_weights, output_bias):
    """Computes one hidden layer in plain PyTorch."""
    hidden = F.relu(F.linear(input, hidden_weights, hidden_bias[0]))
    return F.linear(hidden, output_weights, output_bias[0])


def lltm_cell(input, weights, bias, h, c):
    """Computes the LLTM cell of the PyTorch tutorial in plain PyTorch."""
    i, o, g = F.linear(torch.cat([h, input], dim=1), weights, bias).chunk(3, dim=1)
    c = c + F.elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def lltm(input, weights, bias, h, c):
    """Runs the cell in a Python loop."""
    outputs = []
    for x in input:
        h, c = lltm_cell(x, weights, bias, h, c)
        outputs.append(h)
    output = torch.stack(outputs) if outputs else input.new_zeros(0, *h.shape)
    return output, h, c


def ms_deform_attn(value, shapes, locations, weights):
    """Runs grid_sample per level in float64, with NaN and infinity moved far outside."""
    images, _, heads, channels = value.shape
    queries = locations.size(1)
    bounded = torch.where(locations.isfinite() & (locations.abs() < 1e6), locations, -10).double()
    output = 0
    for level, (h, w) in enumerate(shapes.tolist()):
        start = shapes[:level].prod(1).sum()
        planes = value[:, start : start + h * w].double().permute(0, 2, 3, 1)  # [N, M, D, hw]
        grid = 2 * bounded[:, :, :, level].transpose(1, 2).flatten(0, 1) - 1  # [N M, Q, P, 2]
        planes = planes.reshape(images * heads, channels, h, w)
        samples = F.grid_sample(planes, grid, align_corners=False)  # [N M, D, Q, P]
        weight = weights[:, :, :, level].double().transpose(1, 2).flatten(0, 1)  # [N M, Q, P]
        output = output + (samples * weight[:, None]).sum(3)
    return output.view(images, heads * channels, queries).transpose(1, 2)


def sigmoid_focal_loss(inputs, targets, alpha, gamma):
    """Computes equation 5 of "Focal Loss for Dense Object Detection" in float64."""
    x, t = inputs.double(), targets.double()
    cross_entropy = -(t * F.logsigmoid(x) + (1 - t) * F.logsigmoid(-x))
    error_probability = torch.sigmoid(x) * (1 - t) + torch.sigmoid(-x) * t
    weight = alpha * t + (1 - alpha) * (1 - t) if alpha >= 0 else 1
    return weight * error_probability**gamma * cross_entropy


def softmax_focal_loss(inputs, targets, alpha, gamma, weight=None):
    """Computes the same over a softmax in float64: one loss per row, 0 for invalid classes."""
    is_valid = (targets >= 0) & (targets < inputs.size(1))
    target = targets.long().clamp(0, inputs.size(1) - 1)[:, None]
    x = inputs.double()
    is_other = torch.ones_like(x).scatter(1, target, 0)
    # Near a probability of 1, the other classes give its logarithm.
    target_logit = x.gather(1, target)
    is_largest = target_logit >= x.amax(1, keepdim=True)
    sum_of_others = (torch.where(is_largest, x - target_logit, 0).exp() * is_other).sum(1)
    log_p = torch.where(
        is_largest[:, 0], -sum_of_others.log1p(), x.log_softmax(1).gather(1, target)[:, 0]
    )
    other_probabilities = is_other * x.softmax(1)
    scale = alpha * (1 if weight is None else weight.double()[target[:, 0]])
    return torch.where(is_valid, -scale * other_probabilities.sum(1) ** gamma * log_p, 0)


def chamfer_distance(points1, points2):
    """Returns distances and indices in both directions, point by point in float64."""
    found = []
    for first, second in ((points1, points2), (points2, points1)):
        sets = zip(first.double().tolist(), second.double().tolist(), strict=True)
        distance, index = [], []
        for queries, candidates in sets:
            for x, y in queries:
                squares = [(x - u) ** 2 + (y - v) ** 2 for u, v in candidates]
                squares = [d if d == d else math.inf for d in squares]
                nearest = min(squares, default=math.inf)
                distance.append(nearest)
                index.append(squares.index(nearest) if nearest < math.inf else -1)
        shape = first.shape[:2]
        found.append(
            (
                torch.tensor(distance, dtype=torch.double).view(shape),
                torch.tensor(index).view(shape),
            )
        )
    return found[0][0], found[1][0], found[0][1].long(), found[1][1].long()


def clamp_has_zero_gradient_at_bound() -> bool:
    """Returns whether clamp has derivative 0 at its bound; PyTorch changed this after 2.11."""
    x = torch.zeros(1, requires_grad=True)
    x.clamp(min=0).backward()
    return bool(x.grad == 0)


def mask_touching_pairs(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns weights ``[N, M]``: 0 for pairs whose intersection has a side of exactly 0, else 1.

    The derivative of their overlap equals torchvision's only on a PyTorch with a flat clamp.
    """
    if clamp_has_zero_gradient_at_bound():
        return torch.ones(len(a), len(b))
    low = torch.maximum(a[:, None, :2], b[:, :2])
    return (torch.minimum(a[:, None, 2:], b[:, 2:]) != low).all(2).float()


def overlap(a, b, mode):
    """Returns the IoU, or for ``iof`` the intersection over the area of ``a``; 0 if undefined."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    intersection = width * height if width > 0 and height > 0 else 0.0
    base = (a[2] - a[0]) * (a[3] - a[1])
    if mode == "iou":
        base += (b[2] - b[0]) * (b[3] - b[1]) - intersection
    ratio = intersection / base if base else math.nan
    return ratio if ratio == ratio and intersection > 0 else 0.0


def overlaps(boxes1, boxes2, mode):
    """Returns the overlaps of all pairs in float64."""
    first, second = boxes1.double().tolist(), boxes2.double().tolist()
    rows = [[overlap(a, b, mode) for b in second] for a in first]
    return torch.tensor(rows, dtype=torch.double).reshape(len(first), len(second))


def nms_match(boxes, scores, iou_threshold, dtype=np.float32):
    """Returns for each box the first selected box that suppresses it, or the box itself."""
    kept = nms(boxes, scores, iou_threshold, dtype).tolist()
    b = boxes.cpu().to(torch.float64).numpy().astype(dtype)
    match = list(range(len(b)))
    with np.errstate(all="ignore"):
        for i in set(match) - set(kept):
            match[i] = next(k for k in kept if float(_iou(b[k], b[i])) > iou_threshold)
    return torch.tensor(match, dtype=torch.int64)
