"""Calls of roi_align for the contract tests of pooling ops."""

import reference
from pooling import SCALE, Pooling, upright

import detops


def way(name, sampling_ratio, aligned):
    return Pooling(
        name=name,
        function=detops.roi_align,
        module=detops.RoIAlign,
        oracle=reference.roi_align,
        options=dict(
            output_size=(2, 3),
            spatial_scale=SCALE,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
        ),
        make=upright,
        most_samples=4096,
        sums_in_any_order=("input",),
    )


CASES = [
    way("roi_align", 2, True),
    way("roi_align, unaligned", 2, False),
    way("roi_align, adaptive", -1, True),
    way("roi_align, adaptive and unaligned", -1, False),
]
