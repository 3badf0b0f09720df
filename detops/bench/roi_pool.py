# SPDX-License-Identifier: MIT
"""Benchmarks of roi_pool, ps_roi_align and ps_roi_pool, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .. import _C, ops
from .case import Case
from .roi_align import CHANNELS, SCALE, random_rois

OPS = ("roi_pool", "ps_roi_align", "ps_roi_pool")

LAYOUTS = {"NCHW": torch.contiguous_format, "channels_last": torch.channels_last}


def _roi_pool(device: torch.device, generator: torch.Generator) -> Iterator[Case]:
    import torchvision

    theirs = torchvision.ops.roi_pool
    their_backward = torch.ops.torchvision._roi_pool_backward
    for height, width in ((50, 84), (200, 336)):
        shape = (1, CHANNELS, height, width)
        for layout, form in LAYOUTS.items():
            x = torch.randn(shape, generator=generator).to(device).contiguous(memory_format=form)
            rois = random_rois(generator, 500, width, height, 40, 100).to(device)
            pooled, argmax = _C.roi_pool_forward(x, rois, SCALE, 7, 7)
            _, their_argmax = torch.ops.torchvision.roi_pool(x, rois, SCALE, 7, 7)
            grad = torch.randn_like(pooled)
            geometry = (SCALE, 7, 7, *shape)
            common: dict[str, Any] = dict(layout=layout, quick=height == 50)
            name = f"500 RoIs 7x7, 256 x {height} x {width}"
            yield Case(
                "roi_pool forward",
                name,
                lambda: ops.roi_pool(x, rois, 7, SCALE),  # noqa: B023
                lambda: theirs(x, rois, 7, SCALE),  # noqa: B023
                bytes=4 * (x.numel() + 2 * pooled.numel()),
                **common,
            )
            yield Case(
                "roi_pool backward",
                name,
                lambda: _C.roi_pool_backward(grad, x, rois, argmax, *geometry),  # noqa: B023
                lambda: their_backward(grad, rois, their_argmax, *geometry),  # noqa: B023
                bytes=4 * (x.numel() + 2 * pooled.numel()),
                **common,
            )


def _position_sensitive(device: torch.device, generator: torch.Generator) -> Iterator[Case]:
    import torchvision

    height, width = 50, 84
    for groups in (10, 21):
        for layout, form in LAYOUTS.items():
            shape = (1, groups * 49, height, width)
            x = torch.randn(shape, generator=generator).to(device).contiguous(memory_format=form)
            rois = random_rois(generator, 300, width, height, 40, 100).to(device)
            for op, extra in (("ps_roi_align", (2,)), ("ps_roi_pool", ())):
                forward, backward = getattr(ops, op), getattr(_C, f"{op}_backward")
                theirs = getattr(torchvision.ops, op)
                theirs_raw = getattr(torch.ops.torchvision, op)
                their_backward = getattr(torch.ops.torchvision, f"_{op}_backward")
                _, mapping = theirs_raw(x, rois, SCALE, 7, 7, *extra)
                pooled = forward(x, rois, 7, SCALE, *extra)
                grad = torch.randn_like(pooled)
                geometry = (SCALE, 7, 7, *extra, *shape)
                common: dict[str, Any] = dict(
                    layout=layout, bytes=4 * (x.numel() + pooled.numel()), quick=groups == 10
                )
                name = f"300 RoIs 7x7, {shape[1]:,} x {height} x {width}"
                yield Case(
                    f"{op} forward",
                    name,
                    lambda: forward(x, rois, 7, SCALE, *extra),  # noqa: B023
                    lambda: theirs(x, rois, 7, SCALE, *extra),  # noqa: B023
                    **common,
                )
                if op == "ps_roi_pool":  # unlike ours, theirs covers the last row and column
                    common["quick"] = False
                yield Case(
                    f"{op} backward",
                    name,
                    lambda: backward(grad, rois, SCALE, 7, 7, *shape, *extra),  # noqa: B023
                    lambda: their_backward(grad, rois, mapping, *geometry),  # noqa: B023
                    **common,
                )


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    generator = torch.Generator().manual_seed(0)
    yield from _roi_pool(device, generator)
    yield from _position_sensitive(device, generator)
