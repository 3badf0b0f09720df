# SPDX-License-Identifier: MIT
"""Contents of ``mmcv._ext``: mmcv's names, arguments and conventions, on detops ops.

mmcv's Python allocates the outputs; these functions fill them as mmcv's kernels do. Angles are in
radians, clockwise unless stated otherwise. All of mmcv can be imported: names missing from
FUNCTIONS raise NotImplementedError only when called.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _C
from .mmcv_maps import (
    active_rotated_filter_backward,
    active_rotated_filter_forward,
    carafe_backward,
    carafe_forward,
    carafe_naive_backward,
    carafe_naive_forward,
    deform_roi_pool_backward,
    deform_roi_pool_forward,
    masked_col2im_forward,
    masked_im2col_forward,
    rotated_feature_align_backward,
    rotated_feature_align_forward,
)
from .mmcv_polygons import (
    box_iou_quadri,
    convex_giou,
    convex_iou,
    min_area_polygons,
    nms_quadri,
    points_in_polygons_forward,
)
from .mmcv_pool import roi_pool_backward, roi_pool_forward
from .mmcv_rois import (
    border_align_backward,
    border_align_forward,
    prroi_pool_backward,
    prroi_pool_coor_backward,
    prroi_pool_forward,
    riroi_align_rotated_backward,
    riroi_align_rotated_forward,
    roi_align_backward,
    roi_align_forward,
    roi_align_rotated_backward,
    roi_align_rotated_forward,
)
from .mmcv_soft_nms import softnms
from .thresholds import above, at_least, rounded_above, with_last_pixel

_ops = torch.ops.detops
_TINY = torch.finfo(torch.float32).tiny


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Returns indices by descending score; ``offset`` is 1 if boxes include their last pixel."""
    if offset:
        bound = rounded_above(iou_threshold)
        return _ops.nms(with_last_pixel(boxes), scores, bound)
    return _ops.nms(boxes, scores, above(iou_threshold, boxes))


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Returns groups of boxes, each with the kept box first; boxes and groups descend by score.

    A box is suppressed if the IoU reaches the threshold.
    """
    boxes, scores = dets[:, :4], dets[:, 4]
    match = _ops.nms_match(boxes, scores, at_least(iou_threshold, boxes))
    order = scores.sort(descending=True, stable=True).indices
    groups: dict[int, list[int]] = {}
    for index, kept in zip(order.tolist(), match[order].tolist(), strict=True):
        groups.setdefault(kept, []).append(index)
    return list(groups.values())


def _degrees(boxes: Tensor) -> Tensor:
    """Converts rotated boxes to our convention: degrees, counter-clockwise."""
    return torch.cat([boxes[:, :4], -torch.rad2deg(boxes[:, 4:5])], 1)


def nms_rotated(dets: Tensor, scores: Tensor, order: Tensor, dets_sorted: Tensor, labels: Tensor,
                iou_threshold: float, multi_label: int) -> Tensor:  # fmt: skip
    """Suppresses a box if the IoU reaches the threshold on CPU, or exceeds it on CUDA.

    mmcv's kernels accept labels but ignore them.
    """
    bound = (above if dets.is_cuda else at_least)(iou_threshold, dets)
    return _ops.nms_rotated(_degrees(dets), scores, bound)


def box_iou_rotated(
    boxes1: Tensor, boxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool
) -> None:
    """Writes the IoU, or with ``mode_flag`` 1 the intersection over the first box's area."""
    op = _ops.rotated_iou_forward if aligned else _ops.box_iou_rotated
    overlaps = op(_degrees(boxes1), _degrees(boxes2), "iof" if mode_flag == 1 else "iou")
    ious.copy_(overlaps.reshape(ious.shape))


def diff_iou_rotated_sort_vertices_forward(
    vertices: Tensor, mask: Tensor, num_valid: Tensor
) -> Tensor:
    """Returns ``[B, N, 9]``: up to 8 valid vertices by angle, the first again, then padding.

    Vertices are relative to a point among them. The first eight are box corners, the rest edge
    crossings. Padding is the index of the first invalid crossing, whose position and gradient are
    0.
    """
    angle = torch.atan2(vertices[..., 1], vertices[..., 0])
    angle = torch.where(angle < 0, angle + 2 * math.pi, angle).masked_fill(~mask, math.inf)
    order = angle.argsort(dim=-1, stable=True)[..., :9]
    count = num_valid.clamp(max=8)[..., None]
    padding = 8 + mask[..., 8:].int().argmin(-1, keepdim=True)
    position = torch.arange(9, device=order.device)
    order = torch.where(
        position < count, order, torch.where(position == count, order[..., :1], padding)
    )
    return torch.where(count >= 3, order, padding).to(torch.int32)


def bbox_overlaps(
    bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int
) -> None:
    """Writes the IoU, or with ``mode`` 1 intersection over the first box's area; 0 / 0 is NaN."""
    if offset:
        bboxes1, bboxes2 = with_last_pixel(bboxes1), with_last_pixel(bboxes2)
    ious.copy_(_ops.box_iou(bboxes1, bboxes2, "xyxy", "iof" if mode else "iou", aligned))
    if offset and ious.is_cuda:
        return  # mmcv's CUDA kernel clamps the divisor to 1
    empty = _ops.box_area(bboxes1) == 0
    if empty.any():
        empty = empty if aligned else empty[:, None]
        ious.masked_fill_(empty if mode else empty & (_ops.box_area(bboxes2) == 0), torch.nan)


def _one_hot(input: Tensor, target: Tensor) -> Tensor:
    classes = torch.arange(input.size(1), device=input.device)
    return target.unsqueeze(1).eq(classes).to(input.dtype)


def _row_weights(weight: Tensor, target: Tensor) -> Tensor | float:
    """Returns the weight of each row's class; 1 for background, where mmcv reads out of bounds."""
    if not weight.numel():
        return 1.0
    known = (target >= 0) & (target < weight.numel())
    return weight[target.clamp(0, weight.numel() - 1)].where(known, 1)


def _by_row(weights: Tensor | float) -> Tensor | float:
    return weights[:, None] if isinstance(weights, Tensor) else weights


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Writes ``[N, C]`` losses of classes 0..C-1; any other class is background."""
    loss = _ops.sigmoid_focal_loss_forward(input, _one_hot(input, target), alpha, gamma)
    output.copy_(loss * _by_row(_row_weights(weight, target)))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Writes the derivative of each loss."""
    ones = torch.ones_like(input)
    grad = _ops.sigmoid_focal_loss_backward(ones, input, _one_hot(input, target), alpha, gamma)
    grad_input.copy_(grad * _by_row(_row_weights(weight, target)))


def _class_probability(softmax: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the probability of each row's class, and its logarithm."""
    p = softmax.gather(1, target.clamp(min=0)[:, None])[:, 0]
    return p, p.clamp(min=_TINY).log()


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Writes ``[N]`` losses from probabilities; negative classes are ignored."""
    p, log_p = _class_probability(input, target)
    loss = -alpha * (1 - p) ** gamma * log_p * _row_weights(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, gamma: float,
                                alpha: float) -> None:  # fmt: skip
    """Writes the derivative of each loss with respect to its row's logits."""
    p, log_p = _class_probability(input, target)
    slope = gamma * (1 - p) ** (gamma - 1) * p * log_p if gamma else 0
    per_row = alpha * (slope - (1 - p) ** gamma) * _row_weights(weight, target)
    buff.copy_(per_row.masked_fill(target < 0, 0))
    grad_input.copy_(buff[:, None] * (_one_hot(input, target) - input))


def _planes(x: Tensor, planes: int, output: Tensor) -> Tensor:
    """Reads each image's memory as ``planes`` planes of the output's size."""
    height, width = output.shape[2:]
    if x.shape[1:] == (planes, height, width):
        return x
    if x.shape[1:].numel() < planes * height * width:
        raise RuntimeError(
            f"detops.compat.mmcv: offset and mask must have {planes} planes of {height} x {width}, "
            f"got {list(x.shape)}"
        )
    return x.flatten(1)[:, : planes * height * width].unflatten(1, (planes, height, width))


def chamfer_distance_forward(xyz1: Tensor, xyz2: Tensor, dist1: Tensor, dist2: Tensor,
                             idx1: Tensor, idx2: Tensor) -> None:  # fmt: skip
    """Writes squared distances and indices of the nearest points."""
    results = _ops.chamfer_distance_forward(xyz1, xyz2)
    for buffer, result in zip((dist1, dist2, idx1, idx2), results, strict=True):
        buffer.copy_(result)


def chamfer_distance_backward(xyz1: Tensor, xyz2: Tensor, idx1: Tensor, idx2: Tensor,
                              graddist1: Tensor, graddist2: Tensor, gradxyz1: Tensor,
                              gradxyz2: Tensor) -> None:  # fmt: skip
    """Adds to both gradients."""
    grads = graddist1, graddist2
    grad_points1, grad_points2 = _ops.chamfer_distance_backward(
        *grads, xyz1, xyz2, idx1.long(), idx2.long()
    )
    gradxyz1.add_(grad_points1)
    gradxyz2.add_(grad_points2)


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor,
                                  kernel_h: int, kernel_w: int, stride_h: int, stride_w: int,
                                  pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
                                  group: int, deformable_group: int,
                                  with_bias: bool) -> None:  # fmt: skip
    """Reads larger offsets and masks as if they had the size of the output, like mmcv."""
    points = deformable_group * kernel_h * kernel_w
    _ops.modulated_deform_conv_forward(
        *(input, weight, bias, ones, _planes(offset, 2 * points, output)),
        *(_planes(mask, points, output), output, columns, kernel_h, kernel_w, stride_h, stride_w),
        *(pad_h, pad_w, dilation_h, dilation_w, group, deformable_group, with_bias),
    )


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor,
                                   kernel_h: int, kernel_w: int, stride_h: int, stride_w: int,
                                   pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
                                   group: int, deformable_group: int,
                                   with_bias: bool) -> None:  # fmt: skip
    """Adds to the gradients of weight and bias, and overwrites the others."""
    points = deformable_group * kernel_h * kernel_w
    offset_planes, mask_planes = (
        _planes(offset, 2 * points, grad_output),
        _planes(mask, points, grad_output),
    )
    grads = torch.empty_like(offset_planes), torch.empty_like(mask_planes)
    _ops.modulated_deform_conv_backward(
        *(input, weight, bias, ones, offset_planes, mask_planes, columns, grad_input, grad_weight),
        *(grad_bias, *grads, grad_output, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w),
        *(dilation_h, dilation_w, group, deformable_group, with_bias),
    )
    for buffer, grad in zip((grad_offset, grad_mask), grads, strict=True):
        if buffer.shape == grad.shape:
            buffer.copy_(grad)
        else:
            buffer.flatten(1)[:, : grad[0].numel()] = grad.flatten(1)


def ms_deform_attn_forward(value: Tensor, value_spatial_shapes: Tensor,
                           value_level_start_index: Tensor, sampling_locations: Tensor,
                           attention_weights: Tensor, im2col_step: int) -> Tensor:  # fmt: skip
    """Accepts a batch that is no multiple of ``im2col_step``."""
    levels = value_spatial_shapes, value_level_start_index
    return _ops.ms_deform_attn_forward(value, *levels, sampling_locations, attention_weights)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor,
                            value_level_start_index: Tensor, sampling_locations: Tensor,
                            attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
                            grad_sampling_loc: Tensor, grad_attn_weight: Tensor,
                            im2col_step: int) -> None:  # fmt: skip
    """Adds to the gradient of the value, and overwrites the others."""
    grads = _ops.ms_deform_attn_backward(
        *(grad_output, value, value_spatial_shapes, value_level_start_index),
        *(sampling_locations, attention_weights),
    )
    grad_value.add_(grads[0])
    grad_sampling_loc.copy_(grads[1])
    grad_attn_weight.copy_(grads[2])


def get_compiler_version() -> str:
    """Returns the version of detops in place of a compiler version."""
    from .. import __version__

    return f"detops {__version__}"


def get_compiling_cuda_version() -> str:
    """Returns the CUDA version that the extension was built with."""
    version = _C.cuda_version
    return f"{version // 1000}.{version // 10 % 100}" if version else "not available"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "active_rotated_filter_forward": active_rotated_filter_forward,
    "active_rotated_filter_backward": active_rotated_filter_backward,
    "bbox_overlaps": bbox_overlaps,
    "border_align_forward": border_align_forward,
    "border_align_backward": border_align_backward,
    "box_iou_quadri": box_iou_quadri,
    "box_iou_rotated": box_iou_rotated,
    "carafe_forward": carafe_forward,
    "carafe_backward": carafe_backward,
    "carafe_naive_forward": carafe_naive_forward,
    "carafe_naive_backward": carafe_naive_backward,
    "chamfer_distance_forward": chamfer_distance_forward,
    "chamfer_distance_backward": chamfer_distance_backward,
    "convex_giou": convex_giou,
    "convex_iou": convex_iou,
    "deform_conv_forward": _ops.deform_conv_forward,
    "deform_conv_backward_input": _ops.deform_conv_backward_input,
    "deform_conv_backward_parameters": _ops.deform_conv_backward_parameters,
    "deform_roi_pool_forward": deform_roi_pool_forward,
    "deform_roi_pool_backward": deform_roi_pool_backward,
    "diff_iou_rotated_sort_vertices_forward": diff_iou_rotated_sort_vertices_forward,
    "get_compiler_version": get_compiler_version,
    "get_compiling_cuda_version": get_compiling_cuda_version,
    "masked_col2im_forward": masked_col2im_forward,
    "masked_im2col_forward": masked_im2col_forward,
    "min_area_polygons": min_area_polygons,
    "modulated_deform_conv_forward": modulated_deform_conv_forward,
    "modulated_deform_conv_backward": modulated_deform_conv_backward,
    "ms_deform_attn_forward": ms_deform_attn_forward,
    "ms_deform_attn_backward": ms_deform_attn_backward,
    "nms": nms,
    "nms_match": nms_match,
    "nms_quadri": nms_quadri,
    "nms_rotated": nms_rotated,
    "points_in_polygons_forward": points_in_polygons_forward,
    "prroi_pool_forward": prroi_pool_forward,
    "prroi_pool_backward": prroi_pool_backward,
    "prroi_pool_coor_backward": prroi_pool_coor_backward,
    "riroi_align_rotated_forward": riroi_align_rotated_forward,
    "riroi_align_rotated_backward": riroi_align_rotated_backward,
    "roi_align_forward": roi_align_forward,
    "roi_align_backward": roi_align_backward,
    "roi_align_rotated_forward": roi_align_rotated_forward,
    "roi_align_rotated_backward": roi_align_rotated_backward,
    "roi_pool_forward": roi_pool_forward,
    "roi_pool_backward": roi_pool_backward,
    "rotated_feature_align_forward": rotated_feature_align_forward,
    "rotated_feature_align_backward": rotated_feature_align_backward,
    "sigmoid_focal_loss_forward": sigmoid_focal_loss_forward,
    "sigmoid_focal_loss_backward": sigmoid_focal_loss_backward,
    "softmax_focal_loss_forward": softmax_focal_loss_forward,
    "softmax_focal_loss_backward": softmax_focal_loss_backward,
    "softnms": softnms,
}


def _missing(name: str) -> str:
    return f"detops.compat.mmcv: detops does not implement mmcv._ext.{name}"


def _module_getattr(name: str) -> Callable[..., Any]:
    """Resolves module attributes that FUNCTIONS lacks, to functions that raise."""
    if name.startswith("__"):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def raise_missing(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(_missing(name))

    return raise_missing


def contents() -> dict[str, Any]:
    """Returns the contents of ``mmcv._ext``; different versions of mmcv load different names."""
    return {**FUNCTIONS, "__getattr__": _module_getattr}
