# SPDX-License-Identifier: MIT
"""Benchmarks of ms_deform_attn against grid_sample."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import ops
from .case import Case, gradients

OPS = ("ms_deform_attn",)

HEADS, CHANNELS, POINTS = 8, 32, 4
SHAPES = ((100, 134), (50, 67), (25, 34), (13, 17))


def plain_ms_deform_attn(
    value: Tensor, shapes: tuple[tuple[int, int], ...], locations: Tensor, weights: Tensor
) -> Tensor:
    """Calls grid_sample once per level, then computes the weighted sum."""
    images, _, heads, channels = value.shape
    queries = locations.size(1)
    grids = 2 * locations - 1
    samples = []
    maps = value.split([h * w for h, w in shapes], 1)
    for level, (shape, flat) in enumerate(zip(shapes, maps, strict=True)):
        planes = flat.flatten(2).transpose(1, 2).reshape(images * heads, channels, *shape)
        grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)  # [N M, Q, P, 2]
        samples.append(F.grid_sample(planes, grid, align_corners=False))  # [N M, D, Q, P]
    weights = weights.transpose(1, 2).reshape(images * heads, 1, queries, -1)
    attended = (torch.stack(samples, -2).flatten(-2) * weights).sum(-1)
    return attended.view(images, heads * channels, queries).transpose(1, 2).contiguous()


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    images, levels = 2, len(SHAPES)
    shapes = torch.tensor(SHAPES, device=device)
    sizes = shapes.prod(1)
    starts = sizes.cumsum(0) - sizes
    count = int(sizes.sum())
    # An encoder's queries are the pixels of all levels. A decoder's may lie anywhere.
    pixels = []
    for height, width in SHAPES:
        y = (torch.arange(height) + 0.5)[:, None].expand(height, width) / height
        x = (torch.arange(width) + 0.5).expand(height, width) / width
        pixels.append(torch.stack([x, y], -1).view(-1, 2))
    centres = {
        "900 queries": torch.rand(900, 2, generator=generator),
        f"{count:,} queries": torch.cat(pixels),
    }
    for name, centre in centres.items():
        queries = len(centre)
        shape = (images, queries, HEADS, levels, POINTS)
        offsets = torch.randn(*shape, 2, generator=generator).to(device) * 3
        locations = centre.to(device)[:, None, None, None] + offsets / shapes.flip(1)[:, None]
        weights = torch.randn(shape, generator=generator).to(device)
        weights = weights.flatten(3).softmax(-1).view(shape)
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            value = torch.randn(images, count, HEADS, CHANNELS, generator=generator)
            value = value.to(device, dtype)
            inputs = [value, locations, weights]
            leaves = [t.clone().requires_grad_() for t in inputs]
            wide = value.float()  # grid_sample requires the same dtype for feature maps and grid

            def ours(v: Tensor, p: Tensor, w: Tensor) -> Tensor:
                return ops.ms_deform_attn(v, shapes, starts, p, w)

            def plain(v: Tensor, p: Tensor, w: Tensor) -> Tensor:
                return plain_ms_deform_attn(v.float(), SHAPES, p, w).to(v.dtype)

            grad = torch.randn(images, queries, HEADS * CHANNELS, generator=generator)
            grad = grad.to(device, dtype)
            output, their_output = ours(*leaves), plain(*leaves)
            size = value.element_size()
            samples = locations.numel() // 2
            traffic = size * (value.numel() + grad.numel()) + 4 * 3 * samples
            case = f"{images} images, {name}, {levels} levels, {HEADS} heads"
            kind = str(dtype).removeprefix("torch.")
            quick = queries == 900 and dtype == torch.float32
            yield Case(
                "ms_deform_attn forward",
                case,
                lambda: ours(*inputs),  # noqa: B023
                pytorch=lambda: plain(wide, *inputs[1:]),  # noqa: B023
                dtype=kind,
                bytes=traffic,
                flops=2 * 4 * samples * CHANNELS,
                quick=quick,
            )
            yield Case(
                "ms_deform_attn backward",
                case,
                gradients(output, leaves, grad),
                pytorch=gradients(their_output, leaves, grad),
                dtype=kind,
                bytes=2 * traffic,
                flops=2 * 2 * 4 * samples * CHANNELS,
                quick=quick,
            )
