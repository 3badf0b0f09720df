"""Compares tame calls of the fuzzer that are small enough with the slow references of the tests."""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import reference
import reference_maps
import reference_masks
import reference_oriented
import reference_polygons
import reference_prroi_pool
import reference_roi_pool
import reference_rotated
import reference_sparse_pool
import torch
import torch.nn.functional as F
from torch import Tensor

from .case import Case, map_tensors, tensors_of

Close = Callable[[Tensor, Tensor, float, str], None]
MAX_RESULTS = 3_000  # results of a call; the references take some microseconds per result
ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def _contiguous(x: Tensor) -> Tensor:
    return x.resolve_neg().contiguous()


def _arguments(case: Case, names: str) -> list[Any]:
    return [case.args[name] for name in names.split()]


def _output_size(case: Case) -> tuple[int, int]:
    return case.args["pooled_height"], case.args["pooled_width"]


def _nms(case: Case) -> list[Tensor] | None:
    boxes, scores, threshold = _arguments(case, "boxes scores iou_threshold")
    if case.args.get("score_threshold") is not None or len(boxes) > 60:
        return None
    dtype = np.float64 if boxes.dtype == torch.float64 else np.float32
    if case.op == "nms_match":
        return [reference.nms_match(boxes, scores, threshold, dtype)]
    nms = functools.partial(reference.nms, dtype=dtype)
    if case.op == "batched_nms":
        idxs = case.args["idxs"]
        # PyTorch cannot sort wider unsigned integers.
        kept = reference.batched_nms(boxes, scores, idxs.long(), threshold, nms)
    else:
        kept = nms(boxes, scores, threshold)
    return [kept[: case.args["max_output"]]]


def _many_samples(case: Case) -> bool:
    """Returns whether a RoI has as many samples as pixels."""
    pixels = case.args["boxes"].abs().max() * case.args["spatial_scale"]
    return case.args["sampling_ratio"] <= 0 and bool(pixels > 20)


def _roi_align(case: Case) -> list[Tensor] | None:
    if _many_samples(case):
        return None
    options = _arguments(case, "spatial_scale sampling_ratio aligned")
    return [reference.roi_align(*_arguments(case, "input boxes"), _output_size(case), *options)]


def _pool(function: Callable[..., Any], names: str = "") -> Callable[[Case], list[Tensor] | None]:
    """Returns a reference that takes (input, boxes, size, scale, ...)."""

    def run(case: Case) -> list[Tensor] | None:
        options = _arguments(case, f"spatial_scale {names}")
        if "align" in case.op and _many_samples(case):
            return None
        found = function(*_arguments(case, "input boxes"), _output_size(case), *options)
        return list(found[:1]) if isinstance(found, tuple) else [found]

    return run


def _reference(function: Callable[..., Any], names: str) -> Callable[[Case], list[Tensor]]:
    def run(case: Case) -> list[Tensor]:
        found = function(*_arguments(case, names))
        return list(found) if isinstance(found, tuple) else [found]

    return run


def _box_iou(case: Case) -> list[Tensor] | None:
    if case.args["kind"] not in ("iou", "iof"):
        return None
    return [reference.overlaps(*_arguments(case, "boxes1 boxes2 kind"))]


def _convolution(case: Case) -> list[Tensor]:
    input, weight, bias, padding = _arguments(case, "input weight bias padding")
    bias = None if bias is None else bias.double()
    return [F.conv2d(input.double(), weight.double(), bias, padding=padding)]


def _attention(case: Case) -> list[Tensor] | None:
    names = "value spatial_shapes sampling_locations attention_weights"
    if not all(t.numel() for t in tensors_of(case.args)):
        return None
    return [reference.ms_deform_attn(*_arguments(case, names))]


def _float64_reference(function: Callable[..., Any], names: str) -> Callable[[Case], list[Tensor]]:
    """Runs plain PyTorch in float64."""

    def run(case: Case) -> list[Tensor]:
        found = function(*(t.double() for t in _arguments(case, names)))
        return list(found) if isinstance(found, tuple) else [found]

    return run


REFERENCES: dict[str, Callable[[Case], list[Tensor] | None]] = {
    "nms": _nms,
    "batched_nms": _nms,
    "nms_match": _nms,
    "mask_nms": lambda case: (
        [torch.as_tensor(reference_masks.mask_nms(*_arguments(case, "masks scores iou_threshold")))]
        if len(case.args["masks"]) < 20
        else None
    ),
    "mask_iou": _reference(reference_masks.mask_iou, "masks1 masks2 mode"),
    "masks_to_boxes": _reference(reference_masks.masks_to_boxes, "masks"),
    "box_iou_forward": _box_iou,
    "box_iou_rotated": _reference(reference_rotated.box_iou_rotated, "boxes1 boxes2 mode"),
    "convex_iou": _reference(reference_polygons.convex_iou, "pointsets polygons"),
    "roi_align_forward": _roi_align,
    "roi_pool_forward": _pool(reference_roi_pool.roi_pool),
    "ps_roi_pool_forward": _pool(reference_roi_pool.ps_roi_pool),
    "ps_roi_align_forward": _pool(reference_roi_pool.ps_roi_align, "sampling_ratio"),
    "prroi_pool_forward": _pool(reference_prroi_pool.prroi_pool),
    "roi_align_rotated_forward": _pool(reference_sparse_pool.roi_align_rotated, "sampling_ratio"),
    "rotated_feature_align_forward": _reference(
        reference_oriented.rotated_feature_align, "features boxes spatial_scale points"
    ),
    "point_sample_forward": _reference(reference_maps.point_sample, "input points"),
    "carafe_forward": _reference(
        reference_maps.carafe, "features masks kernel_size group_size scale_factor"
    ),
    "chamfer_distance_forward": lambda case: list(
        reference.chamfer_distance(*_arguments(case, "points1 points2"))[:2]
    ),
    "ms_deform_attn_forward": _attention,
    "winograd_conv2d_forward": _convolution,
    "mlp_forward": _float64_reference(
        reference.mlp, "input hidden_weights hidden_bias output_weights output_bias"
    ),
    "lltm_cell": _float64_reference(reference.lltm_cell, "input weights bias h c"),
    "lltm": _float64_reference(reference.lltm, "input weights bias h c"),
    "axpy_forward": lambda case: [
        case.args["alpha"] * case.args["x"].double() + case.args["y"].double()
    ],
    "sigmoid_focal_loss_forward": _reference(
        reference.sigmoid_focal_loss, "inputs targets alpha gamma"
    ),
    "softmax_focal_loss_forward": _reference(
        reference.softmax_focal_loss, "inputs targets alpha gamma weight"
    ),
}
# The last bit decides whether a sample lies beyond the border, and how many samples there are. Only
# in float64 do both sides decide alike.
IN_FLOAT64 = {op for op in REFERENCES if "pool" in op or "align" in op} | {"ms_deform_attn_forward"}


def compare(case: Case, found: list[Tensor], close: Close) -> bool:
    """Returns whether there is a reference for the case; requires equal results.

    Raises:
        Finding: the results differ.
    """
    floating = [t for t in tensors_of(case.args) if t.is_floating_point()]
    if case.op not in REFERENCES or any(t.numel() == 0 for t in tensors_of(case.args)):
        return False
    if sum(t.numel() for t in found) + sum(len(t) for t in floating if t.dim()) > MAX_RESULTS:
        return False
    if case.op in IN_FLOAT64 and any(t.dtype != torch.float64 for t in floating):
        return False
    if "rotated" in case.op and bool((case.args.get("boxes", floating[0]) % 1 == 0).all()):
        return False  # rotated by 45 degrees, integer sides end exactly at samples
    contiguous = {k: map_tensors(v, _contiguous) for k, v in case.args.items()}
    expected = REFERENCES[case.op](replace(case, args=contiguous))
    if expected is None:
        return False
    tolerance = max(
        (ROUNDING[t.dtype] for t in [*floating, *found] if t.dtype in ROUNDING), default=0
    )
    for k, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
        close(ours, theirs, tolerance, f"compared with the reference, result {k}")
    return True
