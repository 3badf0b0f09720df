"""Calls of roi_align_rotated for the contract tests of pooling ops."""

import reference_sparse_pool as reference
from pooling import SCALE, Pooling, rotated

import detops


def way(name, sampling_ratio):
    return Pooling(
        name=name,
        function=detops.roi_align_rotated,
        module=detops.RoIAlignRotated,
        oracle=reference.roi_align_rotated,
        options=dict(output_size=(2, 3), spatial_scale=SCALE, sampling_ratio=sampling_ratio),
        make=rotated,
        most_samples=64,
        sums_in_any_order=("pooled", "input"),
        columns=6,
    )


CASES = [
    way("roi_align_rotated", 3),
    way("roi_align_rotated, one sample", 1),
    way("roi_align_rotated, adaptive", -1),
]
