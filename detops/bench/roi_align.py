# SPDX-License-Identifier: MIT
"""Benchmarks of roi_align and multiscale_roi_align, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .. import _C, ops
from .case import Case, gradients, proposals

OPS = ("roi_align", "multiscale_roi_align")

CHANNELS = 256
SCALE = 0.25


def plain_roi_align(x: Tensor, rois: Tensor, size: int, scale: float, ratio: int) -> Tensor:
    """Computes RoIAlign of one image in plain PyTorch: gathers the neighbours of all samples."""
    height, width = x.shape[2:]
    low, high = rois[:, 1:3] * scale, rois[:, 3:5] * scale
    step = (high - low).clamp(min=1) / (size * ratio)
    position = torch.arange(size * ratio, device=x.device) + 0.5
    at = (low[:, None] + step[:, None] * position[:, None]).unbind(2)  # x and y, [K, size * ratio]
    taps = []
    for coordinate, limit in zip(at, (width, height), strict=True):
        inside = (coordinate >= -1) & (coordinate <= limit)
        coordinate = coordinate.clamp(0, limit - 1)
        first = coordinate.floor().long().clamp(max=max(0, limit - 2))
        fraction = coordinate - first
        taps.append(
            (
                (first, (1 - fraction) * inside),
                ((first + 1).clamp(max=limit - 1), fraction * inside),
            )
        )
    pooled: Any = 0
    for column, column_weight in taps[0]:
        for row, row_weight in taps[1]:
            samples = x[0][:, row[:, :, None], column[:, None, :]]  # [C, K, rows, columns]
            pooled = pooled + samples * row_weight[:, :, None] * column_weight[:, None, :]
    count = len(rois)
    pooled = pooled.reshape(-1, count, size, ratio, size, ratio).mean((3, 5))
    return pooled.transpose(0, 1)


def random_rois(
    generator: torch.Generator,
    count: int,
    width: int,
    height: int,
    min_side: float,
    max_side: float,
    images: int = 1,
) -> Tensor:
    """Returns RoIs centred anywhere on the feature map, sides ``min_side`` to ``max_side``."""
    extent = torch.tensor([width, height]) / SCALE
    centre = torch.rand(count, 2, generator=generator) * extent
    side = min_side + torch.rand(count, 2, generator=generator) * (max_side - min_side)
    image = torch.arange(count).view(-1, 1) % images
    return torch.cat([image, centre - side / 2, centre + side / 2], 1)


def _atomics(device: torch.device) -> str:
    """Returns the caveat for torchvision's backward on a GPU, which may differ from run to run."""
    return "; torchvision: float atomics" if device.type == "cuda" else ""


def _single_level(device: torch.device, generator: torch.Generator) -> Iterator[Case]:
    import torchvision

    theirs = torchvision.ops.roi_align
    their_backward = torch.ops.torchvision._roi_align_backward
    sizes = [(1, 500, 50, 84), (1, 500, 200, 336)]
    if device.type == "cuda":
        sizes.append((8, 4096, 200, 336))
    for images, count, height, width in sizes:
        name = f"{count:,} RoIs 7x7, {f'{images} x ' * (images > 1)}256 x {height} x {width}"
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            layout = "channels_last" if last else "NCHW"
            wide = torch.randn(images, CHANNELS, height, width, generator=generator).to(device)
            rois = random_rois(generator, count, width, height, 40, 100, images).to(device)
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                x = wide.to(dtype).contiguous(memory_format=form)
                # torchvision has no bfloat16 kernel, so its float32 kernel is timed instead.
                x_theirs = x.float() if dtype == torch.bfloat16 else x
                rois_theirs = rois.to(x_theirs.dtype)
                shape = (images, CHANNELS, height, width)
                geometry = (SCALE, 7, 7, *shape, 2, False)
                grad = torch.randn(count, CHANNELS, 7, 7, device=device)
                grad = grad.to(dtype).contiguous(memory_format=form)
                grad_theirs = grad.to(x_theirs.dtype)
                names: dict[str, Any] = dict(
                    layout=layout, dtype=str(dtype).removeprefix("torch."),
                    bytes=x.element_size() * (x.numel() + grad.numel()),
                )  # fmt: skip
                plain = dtype == torch.float32 and height == 50 and not last
                yield Case(
                    "roi_align forward",
                    name,
                    lambda: ops.roi_align(x, rois, 7, SCALE, 2),  # noqa: B023
                    lambda: theirs(x_theirs, rois_theirs, 7, SCALE, 2),  # noqa: B023
                    (lambda: plain_roi_align(x, rois, 7, SCALE, 2)) if plain else None,  # noqa: B023
                    quick=dtype == torch.float32 and height == 50,
                    **names,
                )
                yield Case(
                    "roi_align backward",
                    name + _atomics(device),
                    lambda: _C.roi_align_backward(grad, rois, *geometry),  # noqa: B023
                    lambda: their_backward(grad_theirs, rois_theirs, *geometry),  # noqa: B023
                    quick=dtype == torch.float32 and height == 50,
                    **names,
                )
            if images > 1:
                continue
            large = random_rois(generator, 300, width, height, width, 3 * width).to(device)
            x = wide.contiguous(memory_format=form)
            yield Case(
                "roi_align forward",
                f"300 large RoIs, adaptive, 256 x {height} x {width}",
                lambda: ops.roi_align(x, large, 7, SCALE, 0),  # noqa: B023
                lambda: theirs(x, large, 7, SCALE, 0),  # noqa: B023
                layout=layout,
                bytes=4 * (x.numel() + 300 * CHANNELS * 49),
            )
    x = wide[:1, :, :50, :84].contiguous()
    for count in (10, 100, 1000):
        rois = random_rois(generator, count, 84, 50, 40, 100).to(device)
        yield Case(
            "roi_align forward",
            f"{count:,} RoIs 7x7, 256 x 50 x 84",
            lambda: ops.roi_align(x, rois, 7, SCALE, 2),  # noqa: B023
            lambda: theirs(x, rois, 7, SCALE, 2),  # noqa: B023
            lambda: plain_roi_align(x, rois, 7, SCALE, 2),  # noqa: B023
            layout="NCHW",
            bytes=4 * (x.numel() + count * CHANNELS * 49),
            series="roi_align forward, NCHW",
            size=count,
        )


def _multiscale(device: torch.device, generator: torch.Generator) -> Iterator[Case]:
    import torchvision

    names = ["0", "1", "2", "3"]
    shapes = ((200, 336), (100, 168), (50, 84), (25, 42))
    for count, size in ((1000, 7), (100, 14)):
        boxes = [proposals(generator, count, 1333, 800).to(device)]
        image_sizes = [(800, 1333)]
        for last in (False, True):
            form = torch.channels_last if last else torch.contiguous_format
            maps = {
                name: torch.randn(1, CHANNELS, *shape, generator=generator)
                .to(device)
                .contiguous(memory_format=form)
                .requires_grad_()
                for name, shape in zip(names, shapes, strict=True)
            }
            ours = ops.MultiScaleRoIAlign(names, size, 2)
            theirs = torchvision.ops.MultiScaleRoIAlign(names, size, 2)
            frozen = {name: x.detach() for name, x in maps.items()}
            inputs = list(maps.values())
            total = sum(x.numel() for x in inputs) + count * CHANNELS * size * size
            common: dict[str, Any] = dict(
                layout="channels_last" if last else "NCHW", bytes=4 * total
            )
            name = f"{count:,} RoIs {size}x{size}, 4 levels of 800 x 1,333"
            yield Case(
                "multiscale_roi_align forward",
                name,
                lambda: ours(frozen, boxes, image_sizes),  # noqa: B023
                lambda: theirs(frozen, boxes, image_sizes),  # noqa: B023
                quick=size == 7 and last,
                **common,
            )
            pooled, their_pooled = ours(maps, boxes, image_sizes), theirs(maps, boxes, image_sizes)
            grad = torch.randn(pooled.shape, device=device)
            yield Case(
                "multiscale_roi_align backward",
                name + _atomics(device),
                gradients(pooled, inputs, grad.contiguous(memory_format=form)),
                gradients(their_pooled, inputs, grad),
                **common,
            )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    yield from _single_level(device, generator)
    yield from _multiscale(device, generator)
