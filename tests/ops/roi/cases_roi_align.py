"""Calls of roi_align for the contract tests of pooling ops."""

import reference
from pooling import SCALE, Pooling, upright

import detops


def variant(name, sampling_ratio, aligned):
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
        max_sampling_ratio=4096,
        reordered_sums=("input",),
    )


CASES = [
    variant("roi_align", 2, True),
    variant("roi_align, unaligned", 2, False),
    variant("roi_align, adaptive", -1, True),
    variant("roi_align, adaptive and unaligned", -1, False),
]
