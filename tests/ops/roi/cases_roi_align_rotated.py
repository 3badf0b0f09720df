"""Calls of roi_align_rotated for the contract tests of pooling ops."""

import reference_sparse_pool as reference
from pooling import SCALE, Pooling, rotated

import detops


def variant(name, sampling_ratio):
    return Pooling(
        name=name,
        function=detops.roi_align_rotated,
        module=detops.RoIAlignRotated,
        oracle=reference.roi_align_rotated,
        options=dict(output_size=(2, 3), spatial_scale=SCALE, sampling_ratio=sampling_ratio),
        make=rotated,
        max_sampling_ratio=64,
        reordered_sums=("pooled", "input"),
        columns=6,
    )


CASES = [
    variant("roi_align_rotated", 3),
    variant("roi_align_rotated, one sample", 1),
    variant("roi_align_rotated, adaptive", -1),
]
