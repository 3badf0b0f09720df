"""Slow, obvious maxima of bilinear samples: the oracle of two ops."""

import math

import torch
from reference import _sample


def largest_sample(plane, ys, xs):
    """Returns the largest value and its position; 0 and None if it lies beyond the feature map."""
    height, width = plane.shape
    best, position, first, is_partly_outside = -math.inf, None, None, not ys or not xs
    for y in ys:
        for x in xs:
            if not (-1 <= y <= height and -1 <= x <= width):
                is_partly_outside = True
                continue
            value = float(_sample(plane, y, x))
            first = first or (value, (y, x))
            if value > best:
                best, position = value, (y, x)
    if is_partly_outside and best < 0:
        return 0.0, None
    return (best, position) if position else first


def roi_align_max(input, rois, output_size, spatial_scale, sampling_ratio, aligned):
    """Returns the maxima of the bins in float64, and their positions [K, C, ph, pw, 2]."""
    ph, pw = output_size
    maps = input.double().numpy()
    out = torch.zeros(len(rois), maps.shape[1], ph, pw, dtype=torch.float64)
    positions = torch.full((*out.shape, 2), -2.0, dtype=torch.float64)
    shift = 0.5 if aligned else 0.0
    for k, (b, x1, y1, x2, y2) in enumerate(rois.double().tolist()):
        x, y = x1 * spatial_scale - shift, y1 * spatial_scale - shift
        w, h = x2 * spatial_scale - shift - x, y2 * spatial_scale - shift - y
        if not aligned:
            w, h = max(w, 1), max(h, 1)
        ny = sampling_ratio if sampling_ratio > 0 else math.ceil(h / ph)
        nx = sampling_ratio if sampling_ratio > 0 else math.ceil(w / pw)
        for i in range(ph):
            ys = [y + (i + (n + 0.5) / ny) * h / ph for n in range(ny)]
            for j in range(pw):
                xs = [x + (j + (n + 0.5) / nx) * w / pw for n in range(nx)]
                for c in range(maps.shape[1]):
                    value, position = largest_sample(maps[int(b), c], ys, xs)
                    out[k, c, i, j] = value
                    if position:
                        positions[k, c, i, j] = torch.tensor(position)
    return out, positions


def borders(box, pool_size):
    """Returns the sample coordinates (ys, xs) of the top, left, bottom and right border."""
    x1, y1, x2, y2 = box
    right = [x1 + i * (x2 - x1) / pool_size for i in range(pool_size + 1)]
    down = [y1 + i * (y2 - y1) / pool_size for i in range(pool_size + 1)]
    left = [x2 - i * (x2 - x1) / pool_size for i in range(pool_size + 1)]
    up = [y2 - i * (y2 - y1) / pool_size for i in range(pool_size + 1)]
    return ([y1], right), (down, [x1]), ([y2], left), (up, [x2])


def border_align(input, boxes, pool_size):
    """Returns the maxima and the indices of their samples, -1 beyond the feature map."""
    maps, channels = input.double().numpy(), input.size(1) // 4
    out = torch.zeros(len(maps), channels, boxes.size(1), 4, dtype=torch.float64)
    indices = torch.full(out.shape, -1, dtype=torch.int32)
    for b, boxes_of_image in enumerate(boxes.double().tolist()):
        for k, box in enumerate(boxes_of_image):
            for border, (ys, xs) in enumerate(borders(box, pool_size)):
                for c in range(channels):
                    plane = maps[b, border * channels + c]
                    out[b, c, k, border], position = largest_sample(plane, ys, xs)
                    if position:
                        index = max(ys.index(position[0]), xs.index(position[1]))
                        indices[b, c, k, border] = index
    return out, indices
