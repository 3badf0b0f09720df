"""The call of prroi_pool for the contract tests of pooling ops."""

import reference_prroi_pool as reference
from pooling import SCALE, Pooling, upright

import detops

CASES = [
    Pooling(
        name="prroi_pool",
        function=detops.prroi_pool,
        module=detops.PrRoIPool,
        oracle=reference.prroi_pool,
        options=dict(output_size=(2, 3), spatial_scale=SCALE),
        make=upright,
        gradients=("input", "boxes"),
        second_derivatives=False,
        reordered_sums=("input", "boxes"),
        tolerance=1e-4,  # short bins are differences of integrals
        exceptions={
            "same bits beside other RoIs": "all RoIs decide which variant of the kernel runs"
        },
    )
]
