"""The way to call roi_pool for which the contract of pooling ops is tested."""

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
        tolerance=0.0,  # a pixel of the map
    )
]
