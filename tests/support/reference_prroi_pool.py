"""A slow, obvious prroi_pool: the oracle."""

import math

import torch


def _tent_integral(x):
    """Returns the integral of max(0, 1 - |t|) up to x."""
    if x <= 0:
        return 0.5 * max(x + 1, 0) ** 2
    return 1 - 0.5 * max(1 - x, 0) ** 2


def _weights(low, high, bins, size):
    """Returns the fraction of each bin that each pixel contributes."""
    step = (high - low) / bins
    weights = torch.zeros(bins, size, dtype=torch.float64)
    if not math.isfinite(low) or not math.isfinite(step) or step <= 0:
        return weights
    for p in range(bins):
        begin, end = low + p * step, low + (p + 1) * step
        for i in range(size):
            overlap = _tent_integral(end - i) - _tent_integral(begin - i)
            weights[p, i] = overlap / step
    return weights


def prroi_pool(input, rois, output_size, spatial_scale):
    """Integrates the bilinear surface over each bin in float64."""
    maps = input.double()
    out = []
    for b, x1, y1, x2, y2 in (rois.double() * rois.new_tensor([1] + 4 * [spatial_scale])).tolist():
        rows = _weights(y1, y2, output_size[0], maps.size(2))
        cols = _weights(x1, x2, output_size[1], maps.size(3))
        out.append(rows @ maps[int(b)] @ cols.t())
    return torch.stack(out) if out else maps.new_zeros(0, maps.size(1), *output_size)
