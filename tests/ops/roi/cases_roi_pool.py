"""The call of roi_pool for the contract tests of pooling ops."""

import reference_roi_pool as reference
from pooling import SCALE, Pooling, upright

import detops

CASES = [
    Pooling(
        name="roi_pool",
        function=detops.roi_pool,
        module=detops.RoIPool,
        oracle=lambda *tensors, **options: reference.roi_pool(*tensors, **options)[0],
        options=dict(output_size=(2, 3), spatial_scale=SCALE),
        make=upright,
        maximum=True,
        tolerance=0.0,  # outputs are pixels of the feature map
    )
]
