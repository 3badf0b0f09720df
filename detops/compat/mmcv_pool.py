# SPDX-License-Identifier: MIT
"""mmcv's RoI pooling, whose bins differ from torchvision: it does not round corners."""

import torch
from torch import Tensor


def _edges(low: Tensor, size: Tensor, bins: int, limit: int) -> tuple[Tensor, Tensor]:
    """Returns the integer start and end of each RoI's bins, each ``[K, bins]``."""
    bin_index = torch.arange(bins, device=low.device, dtype=low.dtype)
    step = (size / bins)[:, None]
    first = (bin_index * step + low[:, None]).floor().clamp(0, limit)
    last = ((bin_index + 1) * step + low[:, None]).ceil().clamp(0, limit)
    return first.long(), last.long()


def _bins(rois: Tensor, scale: float, height: int, width: int, bins: tuple[int, int]) -> tuple:
    boxes = rois[:, 1:]
    x1, y1 = boxes[:, 0] * scale, boxes[:, 1] * scale
    w, h = (boxes[:, 2] + 1) * scale - x1, (boxes[:, 3] + 1) * scale - y1
    return _edges(y1, h, bins[0], height), _edges(x1, w, bins[1], width), (w > 0) & (h > 0)


def roi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, argmax: Tensor,
                     pooled_height: int, pooled_width: int,
                     spatial_scale: float) -> None:  # fmt: skip
    """Writes maxima and their indices, -1 for bins without pixels; skips inverted boxes."""
    channels, height, width = input.shape[1:]
    bins = (pooled_height, pooled_width)
    rows, cols, valid = _bins(rois, spatial_scale, height, width, bins)
    lowest = torch.finfo(torch.float32 if input.itemsize >= 4 else input.dtype).min
    index = rois[:, 0].long().tolist()
    edges = [[t.tolist() for t in pair] for pair in (rows, cols)]
    for k in valid.nonzero()[:, 0].tolist():
        top, bottom = edges[0][0][k], edges[0][1][k]
        left, right = edges[1][0][k], edges[1][1][k]
        image = input[index[k], :, min(top) : max(bottom)]
        # Ties go to the first row, and within it to the first pixel.
        best = input.new_full((channels, image.size(1), pooled_width), lowest)
        columns = best.new_zeros(best.shape, dtype=torch.long)
        for j, (a, b) in enumerate(zip(left, right, strict=True)):
            if a < b and image.size(1):
                part = image[..., a:b]
                best[..., j], position = part.masked_fill(part.isnan(), lowest).max(-1)
                columns[..., j] = position + a
        for i, (a, b) in enumerate(zip(top, bottom, strict=True)):
            if a >= b:
                output[k, :, i], argmax[k, :, i] = 0, -1
                continue
            a, b = a - min(top), b - min(top)
            maxima, row = best[:, a:b].max(1)
            position = (row + a + min(top)) * width + columns[:, a:b].gather(1, row[:, None])[:, 0]
            empty = torch.tensor([p >= q for p, q in zip(left, right, strict=True)])
            empty = empty.to(input.device)
            output[k, :, i] = maxima.masked_fill(empty, 0)
            argmax[k, :, i] = position.masked_fill(empty | (maxima <= lowest), -1).int()


def roi_pool_backward(grad_output: Tensor, rois: Tensor, argmax: Tensor, grad_input: Tensor,
                      pooled_height: int, pooled_width: int,
                     spatial_scale: float) -> None:  # fmt: skip
    """Adds each bin's gradient at the position of its maximum."""
    images, channels, height, width = grad_input.shape
    plane = rois[:, 0].long()[:, None] * channels + torch.arange(channels, device=rois.device)
    position = plane[:, :, None, None] * (height * width) + argmax
    has_maximum = argmax >= 0
    flat = grad_input.new_zeros(grad_input.numel())
    flat.index_add_(0, position[has_maximum], grad_output[has_maximum])
    grad_input.add_(flat.view_as(grad_input))
