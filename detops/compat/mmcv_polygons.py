# SPDX-License-Identifier: MIT
"""The polygon functions of ``mmcv._ext``; see mmcv.py."""

import torch
from torch import Tensor

from .thresholds import above, at_least

_ops = torch.ops.detops


def convex_iou(pointsets: Tensor, polygons: Tensor, ious: Tensor) -> None:
    """Computes all pairs; the result is 0 where mmcv divides by 0."""
    ious.copy_(_ops.convex_iou(pointsets, polygons))


def convex_giou(pointsets: Tensor, polygons: Tensor, output: Tensor) -> None:
    """Writes ``[N, 19]``: the derivatives by the 18 coordinates, then the value."""
    giou = _ops.convex_giou_forward(pointsets, polygons)
    output[:, :18] = _ops.convex_giou_backward(torch.ones_like(giou), pointsets, polygons)
    output[:, 18] = giou


def min_area_polygons(pointsets: Tensor, polygons: Tensor) -> None:
    """Writes corners in the order of our op, which is also mmcv's."""
    polygons.copy_(_ops.min_area_polygons(pointsets))


def points_in_polygons_forward(points: Tensor, polygons: Tensor, output: Tensor) -> None:
    """Writes 1 inside and 0 outside or on a border; mmcv writes either on a border."""
    output.copy_(_ops.points_in_polygons(points, polygons))


def box_iou_quadri(
    boxes1: Tensor, boxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool
) -> None:
    """Writes the IoU, or with ``mode_flag`` 1 the intersection over the first box's area."""
    op = _ops.box_iou_quadri_pairs if aligned else _ops.box_iou_quadri
    ious.copy_(op(boxes1, boxes2, "iof" if mode_flag == 1 else "iou").reshape(ious.shape))


def nms_quadri(dets: Tensor, scores: Tensor, order: Tensor, dets_sorted: Tensor,
               iou_threshold: float, multi_label: int) -> Tensor:  # fmt: skip
    """Suppresses a box if the IoU reaches the threshold on CPU, or exceeds it on CUDA.

    mmcv's kernels accept labels but ignore them.
    """
    bound = (above if dets.is_cuda else at_least)(iou_threshold, dets)
    return _ops.nms_quadri(dets[:, :8], scores, bound)
