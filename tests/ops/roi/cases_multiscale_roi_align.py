"""Calls of multiscale_roi_align for the contract tests of pooling ops."""

import reference
import torch
from pooling import SCALE, Pooling, upright

import detops


def pool(input, boxes, *levels, **options):
    return detops.multiscale_roi_align([input, *levels], boxes, **options)


def oracle(input, boxes, *levels, spatial_scales, canonical_scale, canonical_level, **options):
    maps = [input, *levels]
    chosen = reference.roi_levels(boxes[:, 1:], len(maps), canonical_scale, canonical_level, 1)
    each = [
        reference.roi_align(maps[level], roi[None], spatial_scale=spatial_scales[level], **options)
        for level, roi in zip(chosen.tolist(), boxes, strict=True)
    ]
    return torch.cat(each)


def make(options, images, channels, count, size, generator):
    made = upright(options, images, channels, count, size, generator)
    half = [max(side // 2, 1) for side in size]
    return made | {"input1": torch.randn(images, channels, *half, generator=generator)}


def way(name, sampling_ratio, aligned):
    return Pooling(
        name=name,
        function=pool,
        module=None,
        oracle=oracle,
        options=dict(
            output_size=(2, 3),
            spatial_scales=[SCALE, SCALE / 2],
            sampling_ratio=sampling_ratio,
            aligned=aligned,
            canonical_scale=10.0,
            canonical_level=2,
        ),
        make=make,
        most_samples=4096,
        sums_in_any_order=("input", "input1"),
        gradients=("input", "input1"),
        exceptions={
            "module": "MultiScaleRoIAlign takes maps by name and sizes of images",
            "gradients are rounded once": "rows above an inverted box are rounded before it",
        },
    )


CASES = [
    way("multiscale_roi_align", 2, True),
    way("multiscale_roi_align, adaptive", -1, False),
]
