"""Slow, obvious versions of roi_align_rotated and deform_psroi_pooling: one sample at a time."""

import math

import numpy as np
import torch
from reference import _sample


def roi_align_rotated(input, rois, output_size, spatial_scale, sampling_ratio):
    """Averages every sample of every bin in float64."""
    ph, pw = output_size
    maps = input.detach().double().numpy()
    out = np.zeros((len(rois), maps.shape[1], ph, pw))
    for k, (b, cx, cy, w, h, angle) in enumerate(rois.double().tolist()):
        x0, y0 = cx * spatial_scale - 0.5, cy * spatial_scale - 0.5
        w, h = w * spatial_scale, h * spatial_scale
        cos, sin = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        ny = sampling_ratio if sampling_ratio > 0 else max(0, math.ceil(h / ph))
        nx = sampling_ratio if sampling_ratio > 0 else max(0, math.ceil(w / pw))
        for i in range(ph):
            for j in range(pw):
                for iy in range(ny):
                    for ix in range(nx):
                        down = -h / 2 + (i + (iy + 0.5) / ny) * h / ph
                        across = -w / 2 + (j + (ix + 0.5) / nx) * w / pw
                        # Side h points along (sin, cos), side w along (cos, -sin).
                        x = x0 + down * sin + across * cos
                        y = y0 + down * cos - across * sin
                        out[k, :, i, j] += _sample(maps[int(b)], y, x) / (nx * ny)
    return torch.from_numpy(out)


def _round_half_away_from_zero(x):
    return math.copysign(math.floor(abs(x) + 0.5), x)


def _corners(x, size):
    """Returns the pixels on both sides of a clamped coordinate, and the weight of the second."""
    x = min(max(x, 0.0), size - 1.0)
    return math.floor(x), math.ceil(x), x - math.floor(x)


class DeformPSRoIPooling:
    """Computes the output, and both gradients by the chain rule for each sample."""

    def __init__(
        self, input, rois, offset, output_size, scale, channels, group, part, samples, std
    ):
        self.maps = input.detach().double().numpy()
        self.rois = rois.double().tolist()
        self.offset = None if offset is None else offset.detach().double().numpy()
        self.size, self.scale, self.channels, self.group = output_size, scale, channels, group
        self.part, self.samples, self.std = part, samples, std

    def _bins(self):
        ph, pw = self.size
        classes = 1 if self.offset is None else self.offset.shape[1] // 2
        for k, (image, *corners) in enumerate(self.rois):
            x1, y1, x2, y2 = (_round_half_away_from_zero(v) for v in corners)
            left, top = x1 * self.scale - 0.5, y1 * self.scale - 0.5
            w = max((x2 + 1) * self.scale - 0.5 - left, 0.1)
            h = max((y2 + 1) * self.scale - 0.5 - top, 0.1)
            for c in range(self.channels):
                offset_class = c // (self.channels // classes)
                for i in range(ph):
                    for j in range(pw):
                        plane = (c * self.group + i * self.group // ph) * self.group
                        plane += j * self.group // pw
                        offset_index = (
                            k,
                            2 * offset_class,
                            i * self.part // ph,
                            j * self.part // pw,
                        )
                        x, y = left + j * w / pw, top + i * h / ph
                        if self.offset is not None:
                            x += self.offset[offset_index] * self.std * w
                            y += (
                                self.offset[(k, 2 * offset_class + 1, *offset_index[2:])]
                                * self.std
                                * h
                            )
                        steps = (h / ph / self.samples, w / pw / self.samples)
                        yield (k, c, i, j), (int(image), plane), offset_index, (y, x), steps, (h, w)

    def _samples(self, start, step):
        height, width = self.maps.shape[2:]
        for iy in range(self.samples):
            for ix in range(self.samples):
                y, x = start[0] + iy * step[0], start[1] + ix * step[1]
                if -0.5 <= y <= height - 0.5 and -0.5 <= x <= width - 0.5:
                    yield _corners(y, height), _corners(x, width)

    def forward(self):
        out = np.zeros((len(self.rois), self.channels, *self.size))
        count = np.zeros_like(out)
        for output_index, plane, _, start, step, _ in self._bins():
            for (y0, y1, fy), (x0, x1, fx) in self._samples(start, step):
                m = self.maps[plane]
                out[output_index] += (1 - fy) * ((1 - fx) * m[y0, x0] + fx * m[y0, x1])
                out[output_index] += fy * ((1 - fx) * m[y1, x0] + fx * m[y1, x1])
                count[output_index] += 1
        return torch.from_numpy(out / np.maximum(count, 1)), torch.from_numpy(count)

    def backward(self, grad):
        _, count = self.forward()
        grad = (grad.double() / count.clamp(min=1)).numpy()
        grad_maps = np.zeros_like(self.maps)
        grad_offset = None if self.offset is None else np.zeros_like(self.offset)
        for output_index, plane, offset_index, start, step, (h, w) in self._bins():
            for (y0, y1, fy), (x0, x1, fx) in self._samples(start, step):
                g = grad[output_index]
                for y, wy in ((y0, 1 - fy), (y1, fy)):
                    for x, wx in ((x0, 1 - fx), (x1, fx)):
                        grad_maps[plane][y, x] += wy * wx * g
                if grad_offset is None:
                    continue
                m = self.maps[plane]
                slope_x = (1 - fy) * (m[y0, x1] - m[y0, x0]) + fy * (m[y1, x1] - m[y1, x0])
                slope_y = (1 - fx) * (m[y1, x0] - m[y0, x0]) + fx * (m[y1, x1] - m[y0, x1])
                grad_offset[offset_index] += slope_x * g * self.std * w
                grad_offset[(offset_index[0], offset_index[1] + 1, *offset_index[2:])] += (
                    slope_y * g * self.std * h
                )
        grad_offset = None if grad_offset is None else torch.from_numpy(grad_offset)
        return torch.from_numpy(grad_maps), grad_offset
