"""Slow inference of maskrcnn-benchmark: boxes contain their second corner throughout."""

import numpy as np
import torch
import torchvision
from PIL import Image


def resized_size(height, width, small, large):
    """Computes the size like transforms.Resize.get_size."""
    shorter, longer = float(min(width, height)), float(max(width, height))
    size = small
    if longer / shorter * size > large:
        size = int(round(large * shorter / longer))
    if (width <= height and width == size) or (height <= width and height == size):
        return height, width
    if width < height:
        return int(size * height / width), size
    return size, int(size * width / height)


def prepare(image, small, large, mean):
    """Resizes RGB bytes ``[h, w, 3]`` to BGR in 0..255, minus the mean."""
    height, width = resized_size(*image.shape[:2], small, large)
    resized = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    bgr = torch.from_numpy(np.array(resized)[..., ::-1].copy()).permute(2, 0, 1)
    return bgr.float() - torch.tensor(mean).view(3, 1, 1)


def cell_anchors(stride, size, ratios):
    """Returns the anchors of one cell with pixels 0 to stride - 1."""
    found = []
    for ratio in ratios:
        width = np.round(np.sqrt(stride * stride / ratio))
        height = np.round(width * ratio)
        middle = (stride - 1) / 2
        width, height = width * size / stride, height * size / stride
        reach = np.array([(width - 1) / 2, (height - 1) / 2])
        found.append(np.concatenate([middle - reach, middle + reach]))
    return torch.tensor(np.stack(found), dtype=torch.float32)


def grid_anchors(cell, shape, stride):
    found = [
        cell + torch.tensor([x, y, x, y]) * stride for y in range(shape[0]) for x in range(shape[1])
    ]
    return torch.cat(found)


def decode(deltas, boxes, weights):
    """Decodes deltas ``[N, 4]`` of boxes ``[N, 4]``."""
    width, height = boxes[:, 2] - boxes[:, 0] + 1, boxes[:, 3] - boxes[:, 1] + 1
    x, y = boxes[:, 0] + 0.5 * width, boxes[:, 1] + 0.5 * height
    dx, dy, dw, dh = (deltas / torch.tensor(weights)).unbind(1)
    limit = np.log(1000 / 16)
    x, y = dx * width + x, dy * height + y
    width, height = dw.clamp(max=limit).exp() * width, dh.clamp(max=limit).exp() * height
    corners = [x - 0.5 * width, y - 0.5 * height, x + 0.5 * width - 1, y + 0.5 * height - 1]
    return torch.stack(corners, 1)


def clip(boxes, size):
    height, width = size
    last = torch.tensor([width - 1, height - 1, width - 1, height - 1], dtype=boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), last)


def nms(boxes, scores, threshold):
    """Keeps the best boxes first; suppresses boxes above the threshold."""
    remaining = scores.argsort(descending=True, stable=True).tolist()
    area = (boxes[:, 2:] - boxes[:, :2] + 1).prod(1)
    kept = []
    while remaining:
        best = remaining.pop(0)
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[remaining, :2])
        high = torch.minimum(boxes[best, 2:], boxes[remaining, 2:])
        intersection = (high - low + 1).clamp(min=0).prod(1)
        iou = intersection / (area[best] + area[remaining] - intersection)
        remaining = [k for k, u in zip(remaining, iou.tolist(), strict=True) if not u > threshold]
    return torch.tensor(kept, dtype=torch.long)


def propose(logits, deltas, anchors, size, before, after, after_all_levels, threshold):
    """Proposes boxes of one image from ``[A]``, ``[A, 4]`` and ``[A, 4]`` per level."""
    boxes, scores = [], []
    for logit, delta, anchor in zip(logits, deltas, anchors, strict=True):
        score, index = logit.sigmoid().topk(min(before, len(logit)))
        found = clip(decode(delta[index], anchor[index], (1.0, 1, 1, 1)), size)
        keep = nms(found, score, threshold)[:after]
        boxes.append(found[keep])
        scores.append(score[keep])
    boxes, scores = torch.cat(boxes), torch.cat(scores)
    return boxes[scores.topk(min(after_all_levels, len(scores)))[1]]


def pool(features, boxes, output_size, scales, sampling_ratio):
    """Pools from a list of levels with a list of boxes per image."""
    finest, coarsest = -int(np.log2(scales[0])), -int(np.log2(scales[-1]))
    rows = []
    for image, image_boxes in enumerate(boxes):
        for box in image_boxes:
            side = float((box[2:] - box[:2] + 1).prod().sqrt())
            level = int(np.clip(np.floor(4 + np.log2(side / 224 + 1e-6)), finest, coarsest))
            i = level - finest
            roi = torch.cat([torch.tensor([float(image)]), box])[None]
            rows.append(
                torchvision.ops.roi_align(features[i], roi, output_size, scales[i], sampling_ratio)
            )
    return torch.cat(rows)


def detect(logits, deltas, proposals, size, score_thresh, threshold, weights):
    """Returns boxes, scores and labels of one image, best first."""
    found = []
    probabilities = logits.softmax(1)
    for label in range(1, logits.size(1)):
        boxes = clip(decode(deltas[:, 4 * label : 4 * label + 4], proposals, weights), size)
        rows = (probabilities[:, label] > score_thresh).nonzero()[:, 0]
        boxes, scores = boxes[rows], probabilities[rows, label]
        keep = nms(boxes, scores, threshold)
        found.append((boxes[keep], scores[keep], torch.full((len(keep),), label)))
    boxes, scores, labels = (torch.cat(part) for part in zip(*found, strict=True))
    order = scores.argsort(descending=True, stable=True)
    return boxes[order], scores[order], labels[order]


def paste(mask, box, size):
    """Pastes a mask ``[M, M]`` of probabilities like its Masker, with a padding of one."""
    height, width = size
    cells = mask.size(0)
    padded = torch.nn.functional.pad(mask, (1, 1, 1, 1))
    scale = (cells + 2) / cells
    half, middle = (box[2:] - box[:2]) * 0.5 * scale, (box[2:] + box[:2]) * 0.5
    x1, y1, x2, y2 = torch.cat([middle - half, middle + half]).int().tolist()
    w, h = max(x2 - x1 + 1, 1), max(y2 - y1 + 1, 1)
    large = torch.nn.functional.interpolate(padded[None, None], size=(h, w), mode="bilinear")[0, 0]
    image = torch.zeros(height, width, dtype=torch.bool)
    left, top, right, bottom = max(x1, 0), max(y1, 0), min(x2 + 1, width), min(y2 + 1, height)
    if right > left and bottom > top:
        image[top:bottom, left:right] = large[top - y1 : bottom - y1, left - x1 : right - x1] > 0.5
    return image
