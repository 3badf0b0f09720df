"""Calls of deform_psroi_pooling for the contract tests of pooling ops."""

from functools import partial

import torch
from pooling import CHANNELS, SCALE, Pooling, upright
from reference_sparse_pool import DeformPSRoIPooling as Reference

import detops


def pool(input, boxes, offset=None, *, group_size, **options):
    channels = input.size(1) // group_size**2
    return detops.deform_psroi_pooling(
        input, boxes, offset, output_channels=channels, group_size=group_size, **options
    )


def oracle(input, boxes, offset=None, *, group_size, output_size, part_size, **options):
    channels = input.size(1) // group_size**2
    scale, samples, std = (options[k] for k in ("spatial_scale", "sample_per_part", "trans_std"))
    sizes = output_size, scale, channels, group_size, part_size, samples, std
    return Reference(input, boxes, offset, *sizes).forward()[0]


def make(classes, options, images, channels, count, size, generator):
    channels = -(-channels // max(classes, 1)) * max(classes, 1)
    planes = channels * options["group_size"] ** 2
    tensors = upright(options, images, planes, count, size, generator)
    if classes:
        part = options["part_size"]
        tensors["offset"] = torch.randn(count, 2 * classes, part, part, generator=generator)
    return tensors


def variant(name, classes, group_size, part_size, sample_per_part):
    return Pooling(
        name=name,
        function=pool,
        module=partial(detops.DeformPSRoIPooling, output_channels=CHANNELS),
        oracle=oracle,
        options=dict(
            output_size=(2, 3),
            spatial_scale=SCALE,
            group_size=group_size,
            part_size=part_size,
            sample_per_part=sample_per_part,
            trans_std=0.1,
        ),
        make=partial(make, classes),
        gradients=("input", "offset") if classes else ("input",),
        second_derivatives=False,
        reordered_sums=("pooled", "input", "offset"),
        exceptions={"no channels": "output_channels must be at least 1"},
    )


CASES = [
    variant("deform_psroi_pooling", 1, 1, 3, 4),
    variant("deform_psroi_pooling, classes", 2, 1, 2, 2),
    variant("deform_psroi_pooling, groups", 2, 3, 3, 3),
    variant("deform_psroi_pooling, no offsets", 0, 2, 3, 4),
]
