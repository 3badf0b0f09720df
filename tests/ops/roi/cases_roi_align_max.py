"""Calls of roi_align_max for the contract tests of pooling ops."""

import reference_max_samples as reference
from pooling import SCALE, Pooling, upright

import detops


def variant(name, sampling_ratio, aligned):
    return Pooling(
        name=name,
        function=detops.roi_align_max,
        module=detops.RoIAlignMax,
        oracle=lambda *tensors, **options: reference.roi_align_max(*tensors, **options)[0],
        options=dict(
            output_size=(2, 3),
            spatial_scale=SCALE,
            sampling_ratio=sampling_ratio,
            aligned=aligned,
        ),
        make=upright,
        max_sampling_ratio=64,
        second_derivatives=False,
        maximum=True,
    )


CASES = [
    variant("roi_align_max", 3, True),
    variant("roi_align_max, one sample", 1, False),
    variant("roi_align_max, adaptive", 0, True),
    variant("roi_align_max, adaptive and unaligned", 0, False),
]
