"""Slow, obvious versions of the ops on oriented features: one weight or sample at a time."""

import math

import numpy as np
import torch
from reference import _sample


def active_rotated_filter(input, indices):
    """Moves each weight to its position in each rotation."""
    outputs, inputs, entries = *input.shape[:2], input[0, 0].numel()
    rotations = indices.size(3)
    rotated = torch.zeros(outputs, rotations, inputs, entries, dtype=torch.double)
    weights, targets = input.double().flatten(2), indices.reshape(entries, rotations).tolist()
    for entry, row in enumerate(targets):
        for rotation, target in enumerate(row):
            rotated[:, rotation, :, target - 1] += weights[:, :, entry]
    return rotated.view(outputs * rotations, inputs * input.size(2), *input.shape[3:])


def rotated_feature_align(features, boxes, scale, points):
    """Adds samples at the centre of a pixel's box and, with 5 points, at the corners."""
    maps = features.detach().double().numpy()
    output = maps.copy()
    for n, i, j in torch.cartesian_prod(*map(torch.arange, boxes.shape[:3])).tolist():
        cx, cy, w, h, angle = boxes[n, i, j].double().tolist()
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        # Side w points along (cos, -sin), side h along (sin, cos).
        corners = [(u * w / 2, v * h / 2) for u in (-1, 1) for v in (-1, 1)]
        for u, v in [(0, 0), *corners][:points]:
            x, y = (cx + u * cos + v * sin) * scale, (cy - u * sin + v * cos) * scale
            output[n, :, i, j] += _sample(maps[n], y, x)
    return torch.from_numpy(output)


def riroi_align_rotated(
    input, rois, output_size, spatial_scale, sampling_ratio, num_orientations, clockwise
):
    """Samples a rotated grid, each sample from two orientations."""
    scale, ratio, orientations = spatial_scale, sampling_ratio, num_orientations
    ph, pw = output_size
    groups = input.detach().double().unflatten(1, (-1, orientations)).numpy()
    output = np.zeros((len(rois), *groups.shape[1:3], ph, pw))
    for k, (image, cx, cy, w, h, angle) in enumerate(rois.double().tolist()):
        cx, cy, w, h = cx * scale, cy * scale, max(w * scale, 1), max(h * scale, 1)
        radians = math.radians(-angle if clockwise else angle)
        units = angle / 360 * orientations
        lower = math.floor(units)
        ny = ratio if ratio > 0 else math.ceil(h / ph)
        nx = ratio if ratio > 0 else math.ceil(w / pw)
        for i, j, iy, ix in torch.cartesian_prod(*map(torch.arange, (ph, pw, ny, nx))).tolist():
            down = -h / 2 + (i + (iy + 0.5) / ny) * h / ph
            across = -w / 2 + (j + (ix + 0.5) / nx) * w / pw
            y = cy + down * math.cos(radians) - across * math.sin(radians)
            x = cx + down * math.sin(radians) + across * math.cos(radians)
            sample = _sample(groups[int(image)], y, x) / (ny * nx)
            for o in range(orientations):
                for step, weight in ((0, 1 - units + lower), (1, units - lower)):
                    output[k, :, o, i, j] += weight * sample[:, (o - lower + step) % orientations]
    return torch.from_numpy(output).flatten(1, 2)
