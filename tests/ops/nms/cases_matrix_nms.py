import dataclasses
import math

import reference_decay
import torch
from cases_nms import ALIGNED
from nms_inputs import clustered_boxes
from suppression import Suppression

import detops

METHODS = ("gaussian", "linear")
BOXES = dataclasses.replace(
    ALIGNED,
    # Near copies would divide by small differences, which have few digits in float32.
    kinds={"clustered": clustered_boxes},
    thresholds=(0.5,),
    counts=(0, 1, 2, 17, 60, 300, 700),
)


def matrix_nms(method, labelled):
    def call(boxes, scores, labels, threshold, sigma=2.0, min_score=1e-3):
        labels = labels if labelled else None
        return detops.matrix_nms(boxes, scores, labels, sigma, min_score, method)

    def oracle(boxes, scores, labels, threshold, sigma=2.0, min_score=1e-3):
        labels = labels if labelled else torch.zeros_like(labels)
        return reference_decay.matrix_nms(boxes, scores, labels, sigma, min_score, method)

    return call, oracle


CASES = [
    Suppression(
        f"matrix_nms, {method}" + ", labels" * labelled,
        *matrix_nms(method, labelled),
        BOXES,
        options=(
            {},
            {"sigma": 0.5},
            {"sigma": 20.0},
            {"min_score": -math.inf},
            {"min_score": 0.05},
        ),
        rescores=True,
        min_score=1e-3,
        tolerance={torch.float32: 2e-5, torch.float64: 1e-12},
        separates_labels=labelled,
        parallel_count=9000,
        exceptions={
            "test_only_overlap_above_the_threshold_suppresses": "it has no threshold",
            "test_nan_threshold_raises": "it has no threshold",
        },
    )
    for method in METHODS
    for labelled in (False, True)
]
