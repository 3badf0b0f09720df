# SPDX-License-Identifier: MIT
"""Benchmarks of encode_boxes and decode_boxes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .. import ops
from .case import Case, uniform

OPS = ("encode_boxes", "decode_boxes")

COUNT, COUNT_ON_GPU = 200_000, 4_000_000
WEIGHTS = (10.0, 10.0, 5.0, 5.0)


def cases(device: torch.device) -> Iterator[Case]:
    """Yields the benchmark cases one at a time."""
    from torchvision.models.detection._utils import BoxCoder

    generator = torch.Generator().manual_seed(0)
    on_gpu = device.type == "cuda"
    count = COUNT_ON_GPU if on_gpu else COUNT
    anchors = uniform(generator, count)[0].to(device)
    boxes = uniform(generator, count)[0].to(device)
    deltas = torch.randn(count, 4, generator=generator).to(device)
    theirs = BoxCoder(WEIGHTS)
    for name, ours, peer in (
        (
            "encode_boxes",
            lambda: ops.encode_boxes(boxes, anchors, WEIGHTS),
            lambda: theirs.encode_single(boxes, anchors),
        ),
        (
            "decode_boxes",
            lambda: ops.decode_boxes(deltas, anchors, WEIGHTS),
            lambda: theirs.decode_single(deltas, anchors),
        ),
    ):
        yield Case(
            name,
            f"{count:,}",
            ours,
            peer,
            bytes=3 * 16 * count,
            flops=20 * count,
            quick=True,
            bandwidth=on_gpu,
        )
