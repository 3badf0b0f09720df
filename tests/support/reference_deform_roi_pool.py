"""A slow, obvious deform_roi_pool: the oracle."""

import math

import numpy as np
import torch
from reference import _sample


def deform_roi_pool(input, rois, offset, output_size, spatial_scale, sampling_ratio, gamma):
    """Averages every sample of every bin in float64."""
    ph, pw = output_size
    maps = input.double().numpy()
    out = np.zeros((len(rois), maps.shape[1], ph, pw))
    for k, (b, x1, y1, x2, y2) in enumerate(rois.double().tolist()):
        x, y = x1 * spatial_scale - 0.5, y1 * spatial_scale - 0.5
        w, h = (x2 - x1) * spatial_scale, (y2 - y1) * spatial_scale
        ny = sampling_ratio if sampling_ratio > 0 else math.ceil(h / ph)
        nx = sampling_ratio if sampling_ratio > 0 else math.ceil(w / pw)
        for i in range(ph):
            for j in range(pw):
                dx, dy = (0, 0) if offset is None else offset[k, :, i, j].double().tolist()
                for iy in range(ny):
                    for ix in range(nx):
                        down = gamma * h * dy + (i + (iy + 0.5) / ny) * h / ph
                        across = gamma * w * dx + (j + (ix + 0.5) / nx) * w / pw
                        out[k, :, i, j] += _sample(maps[int(b)], y + down, x + across) / (nx * ny)
    return torch.from_numpy(out)
