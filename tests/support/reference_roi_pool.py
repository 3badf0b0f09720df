"""Slow, obvious versions of roi_pool, ps_roi_align and ps_roi_pool, in float64."""

import math

import numpy as np
import reference
import torch


def _round(x):
    return math.copysign(math.floor(abs(x) + 0.5), x)


def _ranges(low, high, scale, pooled, last, limit):
    """Returns the pixels of each bin along one axis, computed in float32 as documented."""
    f = np.float32
    if not (math.isfinite(f(low) * f(scale)) and math.isfinite(f(high) * f(scale))):
        return [range(0)] * pooled
    start, end = _round(float(f(low) * f(scale))), _round(float(f(high) * f(scale)))
    size = f(max(end - start + last, 1)) / f(pooled)
    if not np.isfinite(size):
        return [range(0)] * pooled
    ranges = []
    for p in range(pooled):
        begin = start + float(np.floor(f(p) * size))
        end = start + float(np.ceil(f(p + 1) * size))
        ranges.append(range(int(min(max(begin, 0), limit)), int(min(max(end, 0), limit))))
    return ranges


def _bins(rois, output_size, scale, last, height, width):
    """Yields (RoI, image, ph, pw, rows, columns)."""
    ph, pw = output_size
    with np.errstate(all="ignore"):
        for k, (b, x1, y1, x2, y2) in enumerate(rois.double().tolist()):
            rows = _ranges(y1, y2, scale, ph, last, height)
            cols = _ranges(x1, x2, scale, pw, last, width)
            if not any(rows) or not any(cols):
                continue
            for i in range(ph):
                for j in range(pw):
                    yield k, int(b), i, j, rows[i], cols[j]


def roi_pool(input, rois, output_size, spatial_scale):
    """Returns the largest pixel of each bin and its index."""
    n, c, h, w = input.shape
    out = torch.zeros(len(rois), c, *output_size, dtype=torch.double)
    argmax = torch.full(out.shape, -1, dtype=torch.int32)
    maps = input.detach().double()
    for k, b, i, j, rows, cols in _bins(rois, output_size, spatial_scale, 1, h, w):
        for channel in range(c):
            pixels = [y * w + x for y in rows for x in cols]
            best = pixels[:1]
            value = -math.inf
            for p in pixels:
                if maps[b, channel].view(-1)[p] > value:
                    value, best = maps[b, channel].view(-1)[p].item(), [p]
            if best:
                out[k, channel, i, j] = maps[b, channel].view(-1)[best[0]]
                argmax[k, channel, i, j] = best[0]
    return out, argmax


def roi_pool_backward(grad, rois, argmax, shape):
    """Returns the input gradient in float64, and the sum of the magnitudes of its terms."""
    n, c, h, w = shape
    sums, magnitudes = torch.zeros(2, n, c, h * w, dtype=torch.double)
    image = rois[:, 0].long().view(-1, 1, 1, 1).expand(grad.shape)
    channel = torch.arange(c).view(1, -1, 1, 1).expand(grad.shape)
    is_pooled = argmax >= 0
    index = (image[is_pooled], channel[is_pooled], argmax[is_pooled].long())
    sums.index_put_(index, grad[is_pooled].double(), accumulate=True)
    magnitudes.index_put_(index, grad[is_pooled].double().abs(), accumulate=True)
    return sums.view(shape), magnitudes.view(shape)


def ps_roi_pool(input, rois, output_size, spatial_scale):
    """Averages each bin in its own channel, without the last row and column."""
    n, c, h, w = input.shape
    ph, pw = output_size
    out = torch.zeros(len(rois), c // (ph * pw), ph, pw, dtype=torch.double)
    maps = input.detach().double()
    for k, b, i, j, rows, cols in _bins(rois, output_size, spatial_scale, 0, h - 1, w - 1):
        if len(rows) and len(cols):
            bin_channels = maps[
                b, i * pw + j :: ph * pw, rows.start : rows.stop, cols.start : cols.stop
            ]
            out[k, :, i, j] = bin_channels.mean((1, 2))
    return out


def ps_roi_align(input, rois, output_size, spatial_scale, sampling_ratio):
    """Runs RoIAlign on all channels and keeps the own channels of each bin."""
    ph, pw = output_size
    pooled = reference.roi_align(input, rois, output_size, spatial_scale, sampling_ratio, True)
    out = torch.zeros(len(rois), input.shape[1] // (ph * pw), ph, pw, dtype=torch.double)
    for i in range(ph):
        for j in range(pw):
            out[:, :, i, j] = pooled[:, i * pw + j :: ph * pw, i, j]
    return out
