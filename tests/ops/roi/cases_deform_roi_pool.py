"""Calls of deform_roi_pool for the contract tests of pooling ops."""

from dataclasses import replace

import reference_deform_roi_pool as reference
import torch
from pooling import SCALE, Pooling, upright

import detops


def make(options, images, channels, count, size, generator):
    made = upright(options, images, channels, count, size, generator)
    offset = torch.randn(count, 2, *options["output_size"], generator=generator)
    return made | {"offset": offset}


def without_offset(function):
    return lambda input, boxes, **options: function(input, boxes, None, **options)


def way(name, sampling_ratio):
    return Pooling(
        name=name,
        function=detops.deform_roi_pool,
        module=detops.DeformRoIPool,
        oracle=reference.deform_roi_pool,
        options=dict(
            output_size=(2, 3), spatial_scale=SCALE, sampling_ratio=sampling_ratio, gamma=0.4
        ),
        make=make,
        most_samples=64,
        gradients=("input", "offset"),
        second_derivatives=False,
    )


CASES = [
    way("deform_roi_pool", 3),
    way("deform_roi_pool, one sample", 1),
    way("deform_roi_pool, adaptive", 0),
    replace(
        way("deform_roi_pool, no offsets", 0),
        function=without_offset(detops.deform_roi_pool),
        oracle=without_offset(reference.deform_roi_pool),
        make=upright,
        gradients=("input",),
    ),
]
