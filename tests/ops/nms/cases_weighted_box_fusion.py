import dataclasses

import reference_weighted_box_fusion
import torch
from cases_nms import ALIGNED
from nms_inputs import clustered_boxes
from suppression import Suppression

import detops

TYPES = ("avg", "max", "box_and_model_avg", "absent_model_aware_avg")
WEIGHTS = [1.0, 2.5, 0.5]
BOXES = dataclasses.replace(
    ALIGNED,
    kinds={"clustered": clustered_boxes},
    thresholds=(0.0, 0.3, 0.55, 0.9, 1.0),
    counts=(0, 1, 2, 9, 60),
    rounding=torch.float64,
)
FUSED = "it returns fused boxes, not indices"


def by_model(boxes, scores, labels):
    """Deals the boxes out to three models."""
    return [[t[model::3] for model in range(3)] for t in (boxes, scores, labels)]


def fuse(boxes, scores, labels, threshold, **options):
    inputs = by_model(boxes, scores, labels)
    return detops.weighted_box_fusion(*inputs, iou_threshold=threshold, **options)


def oracle(boxes, scores, labels, threshold, **options):
    inputs = by_model(boxes, scores, labels)
    found = reference_weighted_box_fusion.weighted_box_fusion(
        *inputs, iou_threshold=threshold, **options
    )
    return found[0].to(boxes.dtype), found[1].to(scores.dtype), found[2]


CASES = [
    Suppression(
        "weighted_box_fusion",
        fuse,
        oracle,
        BOXES,
        options=(
            *({"conf_type": conf_type} for conf_type in TYPES),
            *({"conf_type": conf_type, "weights": WEIGHTS} for conf_type in TYPES),
            {"weights": WEIGHTS, "skip_box_threshold": 0.2},
            {"allows_overflow": True},
        ),
        kept=lambda boxes, scores, labels: scores,
        tolerance={torch.float32: 1e-6, torch.float64: 1e-12},
        separates_labels=True,
        exceptions={
            "test_first_of_equal_scores_is_kept": FUSED,
            "test_kept_boxes_are_ordered_by_score_with_nan_first": FUSED,
            "test_malformed_boxes_neither_suppress_nor_are_suppressed": "it drops malformed boxes",
            "test_any_floats_keep_each_box_at_most_once_in_order": FUSED,
            "test_boxes_of_different_labels_do_not_suppress_each_other": FUSED,
            "test_half_precision_is_computed_in_float32": "it computes in float64",
            "test_autocast_computes_in_float32": "it computes in float64",
            "test_malformed_tensors_raise": "its arguments are lists",
        },
    )
]
