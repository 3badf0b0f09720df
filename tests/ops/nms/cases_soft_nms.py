import dataclasses
import math

import numpy as np
import reference_decay
import torch
from cases_nms import ALIGNED
from nms_inputs import clustered_boxes
from suppression import Suppression

import detops

MANY = 1100  # on a GPU each thread has every 1024th box; the CPU uses one thread
METHODS = ("linear", "gaussian", "naive")
BOXES = dataclasses.replace(
    ALIGNED,
    kinds={"clustered": clustered_boxes, "broken": ALIGNED.kinds["broken"]},
    thresholds=(-0.5, 0.0, 0.3, 0.7, 1.5),
    counts=(0, 1, 2, 17, 60, 150),
)


def soft_nms(method):
    def call(boxes, scores, labels, threshold, sigma=0.5, min_score=1e-3, **limits):
        return detops.soft_nms(boxes, scores, threshold, sigma, min_score, method, **limits)

    def oracle(boxes, scores, labels, threshold, sigma=0.5, min_score=1e-3):
        wide = method == "gaussian" or boxes.dtype == torch.float64
        dtype = np.float64 if wide else np.float32
        return reference_decay.soft_nms(boxes, scores, threshold, sigma, min_score, method, dtype)

    return call, oracle


CASES = [
    Suppression(
        f"soft_nms, {method}",
        *soft_nms(method),
        BOXES,
        options=tuple({"min_score": min_score} for min_score in (1e-3, 0.0, 0.5, -math.inf)),
        rescores=True,
        min_score=1e-3,
        limits=("max_output",),
        parallel_count=MANY,
    )
    for method in ("linear", "naive")
]
CASES.append(
    Suppression(
        "soft_nms, gaussian",
        *soft_nms("gaussian"),
        dataclasses.replace(BOXES, thresholds=(0.3,)),
        options=tuple({"sigma": sigma} for sigma in (0.5, 0.01, 3.0, 1e-30, 1e30)),
        rescores=True,
        min_score=1e-3,
        # The exponential function differs from that of NumPy in the last bits.
        tolerance={torch.float32: 1e-5, torch.float64: 1e-12},
        limits=("max_output",),
        parallel_count=MANY,
        exceptions={
            "test_only_overlap_above_the_threshold_suppresses": "every overlap lowers a score"
        },
    )
)
