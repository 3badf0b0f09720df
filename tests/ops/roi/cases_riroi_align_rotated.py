"""Calls of riroi_align_rotated for the contract tests of pooling ops."""

import reference_oriented as reference
from pooling import SCALE, Pooling, rotated

import detops


def make(options, images, channels, *rest):
    orientations = options["num_orientations"]
    return rotated(options, images, -(-channels // orientations) * orientations, *rest)


def variant(name, sampling_ratio, num_orientations, clockwise):
    return Pooling(
        name=name,
        function=detops.riroi_align_rotated,
        module=detops.RiRoIAlignRotated,
        oracle=reference.riroi_align_rotated,
        options=dict(
            output_size=(2, 3),
            spatial_scale=SCALE,
            sampling_ratio=sampling_ratio,
            num_orientations=num_orientations,
            clockwise=clockwise,
        ),
        make=make,
        max_sampling_ratio=64,
        columns=6,
    )


CASES = [
    variant("riroi_align_rotated", 2, 4, False),
    variant("riroi_align_rotated, clockwise", 2, 8, True),
    variant("riroi_align_rotated, adaptive", -1, 5, True),
    variant("riroi_align_rotated, one orientation", -1, 1, False),
]
