"""Slow, obvious versions of the ops on whole feature maps: the oracles."""

import math

import torch
import torch.nn.functional as F


def point_sample(input, points):
    """Samples pixel by pixel in float64, with Python's floor; zeros beyond the border."""
    images, channels, height, width = input.shape
    x = input.double()
    rows = []
    for n in range(images):
        for u, v in points[n].double().tolist():
            value = torch.zeros(channels, dtype=torch.float64)
            if math.isfinite(u) and math.isfinite(v):
                column, row = u * width - 0.5, v * height - 0.5
                for j in (math.floor(row), math.floor(row) + 1):
                    for i in (math.floor(column), math.floor(column) + 1):
                        bilinear_weight = (1 - abs(row - j)) * (1 - abs(column - i))
                        if 0 <= j < height and 0 <= i < width:
                            value = value + bilinear_weight * x[n, :, j, i]
            rows.append(value)
    return torch.stack(rows).view(images, -1, channels).mT if rows else x.new_zeros(0, channels, 0)


def carafe(features, masks, kernel_size, group_size, scale_factor):
    """Computes one output pixel at a time in float64."""
    channels = features.size(1) // group_size
    radius, k, s = kernel_size // 2, kernel_size, scale_factor
    x = F.pad(features.double(), (radius,) * 4)
    weights = masks.double().unflatten(1, (group_size, k, k)).repeat_interleave(channels, 1)
    rows = []
    for y in range(masks.size(2)):
        for i in range(masks.size(3)):
            window = x[:, :, y // s : y // s + k, i // s : i // s + k]
            rows.append((window * weights[..., y, i]).sum((2, 3)))
    return torch.stack(rows, -1).view(*features.shape[:2], *masks.shape[2:])


def masked_conv2d(features, mask, weight, bias, stride, padding):
    """Computes the whole convolution in float64, then sets zeros outside the mask."""
    bias = None if bias is None else bias.double()
    convolved = F.conv2d(features.double(), weight.double(), bias, stride, padding)
    return torch.where((mask > 0)[:, None], convolved, 0.0)
