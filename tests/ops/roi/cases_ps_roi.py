"""Calls of ps_roi_align and ps_roi_pool for the contract tests of pooling ops."""

import reference_roi_pool as reference
from pooling import SCALE, Pooling, upright

import detops


def make(options, images, channels, *rest):
    height, width = options["output_size"]
    return upright(options, images, channels * height * width, *rest)


def align(name, sampling_ratio):
    return Pooling(
        name=name,
        function=detops.ps_roi_align,
        module=detops.PSRoIAlign,
        oracle=reference.ps_roi_align,
        options=dict(output_size=(2, 3), spatial_scale=SCALE, sampling_ratio=sampling_ratio),
        make=make,
        max_sampling_ratio=4096,
        tolerance=5e-6,
    )


POOL = Pooling(
    name="ps_roi_pool",
    function=detops.ps_roi_pool,
    module=detops.PSRoIPool,
    oracle=reference.ps_roi_pool,
    options=dict(output_size=(2, 3), spatial_scale=SCALE),
    make=make,
    tolerance=5e-6,
)
CASES = [align("ps_roi_align", 2), align("ps_roi_align, adaptive", -1), POOL]
