"""Calls of deform_roi_pool for the contract tests of pooling ops."""

from dataclasses import replace

import reference_deform_roi_pool as reference
import torch
from pooling import SCALE, Pooling, upright

import detops


def make(options, images, channels, count, size, generator):
    tensors = upright(options, images, channels, count, size, generator)
    offset = torch.randn(count, 2, *options["output_size"], generator=generator)
    return tensors | {"offset": offset}


def without_offset(function):
    return lambda input, boxes, **options: function(input, boxes, None, **options)


def variant(name, sampling_ratio):
    return Pooling(
        name=name,
        function=detops.deform_roi_pool,
        module=detops.DeformRoIPool,
        oracle=reference.deform_roi_pool,
        options=dict(
            output_size=(2, 3), spatial_scale=SCALE, sampling_ratio=sampling_ratio, gamma=0.4
        ),
        make=make,
        max_sampling_ratio=64,
        gradients=("input", "offset"),
        second_derivatives=False,
    )


CASES = [
    variant("deform_roi_pool", 3),
    variant("deform_roi_pool, one sample", 1),
    variant("deform_roi_pool, adaptive", 0),
    replace(
        variant("deform_roi_pool, no offsets", 0),
        function=without_offset(detops.deform_roi_pool),
        oracle=without_offset(reference.deform_roi_pool),
        make=upright,
        gradients=("input",),
    ),
]
