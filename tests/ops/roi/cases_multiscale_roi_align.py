"""Calls of multiscale_roi_align for the contract tests of pooling ops."""

import reference
import torch
from pooling import SCALE, Pooling, upright

import detops


def pool(input, boxes, *levels, **options):
    return detops.multiscale_roi_align([input, *levels], boxes, **options)


def oracle(input, boxes, *levels, spatial_scales, canonical_scale, canonical_level, **options):
    maps = [input, *levels]
    levels_of_rois = reference.roi_levels(
        boxes[:, 1:], len(maps), canonical_scale, canonical_level, 1
    )
    each = [
        reference.roi_align(maps[level], roi[None], spatial_scale=spatial_scales[level], **options)
        for level, roi in zip(levels_of_rois.tolist(), boxes, strict=True)
    ]
    return torch.cat(each)


def make(options, images, channels, count, size, generator):
    tensors = upright(options, images, channels, count, size, generator)
    half = [max(side // 2, 1) for side in size]
    return tensors | {"input1": torch.randn(images, channels, *half, generator=generator)}


def variant(name, sampling_ratio, aligned):
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
        max_sampling_ratio=4096,
        reordered_sums=("input", "input1"),
        gradients=("input", "input1"),
        exceptions={
            "module": "MultiScaleRoIAlign takes maps by name and sizes of images",
            "gradients are rounded once": "rows above an inverted box are rounded before it",
        },
    )


CASES = [
    variant("multiscale_roi_align", 2, True),
    variant("multiscale_roi_align, adaptive", -1, False),
]
