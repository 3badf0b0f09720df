# SPDX-License-Identifier: MIT
"""What ``mmcv._ext`` holds: mmcv's names, arguments and conventions, on our ops.

mmcv's Python allocates what an op writes; the functions here fill it as mmcv's kernels do. Angles
are radians, clockwise unless said. What is not in FUNCTIONS raises NotImplementedError when it is
called, so that mmcv can be imported whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import _C
from .mmcv_maps import (
    carafe_backward,
    carafe_forward,
    carafe_naive_backward,
    carafe_naive_forward,
    deform_roi_pool_backward,
    deform_roi_pool_forward,
    masked_col2im_forward,
    masked_im2col_forward,
)
from .mmcv_pool import roi_pool_backward, roi_pool_forward
from .mmcv_soft_nms import softnms
from .thresholds import above, at_least, rounded_above, with_last_pixel

_ops = torch.ops.detops
_TINY = torch.finfo(torch.float32).tiny
_BLOCK = 32  # pairs of boxes that a table of all with all compares for a list of pairs


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices by descending score; ``offset`` is 1 where a box contains its last pixel."""
    if offset:
        bound = rounded_above(iou_threshold)
        return _ops.nms(with_last_pixel(boxes), scores, bound)
    return _ops.nms(boxes, scores, above(iou_threshold, boxes))


def _degrees(boxes: Tensor) -> Tensor:
    """Rotated boxes as ours: degrees, counter-clockwise."""
    return torch.cat([boxes[:, :4], -torch.rad2deg(boxes[:, 4:5])], 1)


def nms_rotated(dets: Tensor, scores: Tensor, order: Tensor, dets_sorted: Tensor, labels: Tensor,
                iou_threshold: float, multi_label: int) -> Tensor:  # fmt: skip
    """At the threshold a box falls on the CPU and stays on CUDA.

    mmcv's kernels take labels, and never compare them.
    """
    bound = (above if dets.is_cuda else at_least)(iou_threshold, dets)
    return _ops.nms_rotated(_degrees(dets), scores, bound)


def box_iou_rotated(
    boxes1: Tensor, boxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool
) -> None:
    """IoU, or with ``mode_flag`` 1 the intersection over the area of the first box."""
    first, second = _degrees(boxes1), _degrees(boxes2)
    areas = boxes1[:, 2] * boxes1[:, 3], boxes2[:, 2] * boxes2[:, 3]
    if aligned:
        pairs = zip(first.split(_BLOCK), second.split(_BLOCK), strict=True)
        blocks = [_ops.box_iou_rotated(a, b).diagonal() for a, b in pairs]
        iou = torch.cat(blocks) if blocks else boxes1.new_empty(0)
        area1, area2 = areas
    else:
        iou = _ops.box_iou_rotated(first, second)
        area1, area2 = areas[0][:, None], areas[1]
    if mode_flag == 1:
        # The intersection from its ratio to the union, as no op gives it alone.
        iou = (iou * (area1 + area2) / (1 + iou) / area1).masked_fill(iou == 0, 0)
    ious.copy_(iou.reshape(ious.shape))


def bbox_overlaps(
    bboxes1: Tensor, bboxes2: Tensor, ious: Tensor, mode: int, aligned: bool, offset: int
) -> None:
    """IoU, or with ``mode`` 1 the intersection over the area of the first box; 0 / 0 is NaN."""
    if not aligned:
        bboxes1 = bboxes1[:, None]
    low = torch.maximum(bboxes1[..., :2], bboxes2[..., :2])
    high = torch.minimum(bboxes1[..., 2:], bboxes2[..., 2:])
    intersection = (high - low + offset).clamp(min=0).prod(-1)
    base = (bboxes1[..., 2:] - bboxes1[..., :2] + offset).prod(-1)
    if mode == 0:
        base = base + (bboxes2[..., 2:] - bboxes2[..., :2] + offset).prod(-1) - intersection
    # mmcv's two kernels differ in what they divide by.
    ious.copy_(intersection / (base.clamp(min=offset) if ious.is_cuda else base))


def _without_maxima(name: str, pool_mode: int) -> None:
    if pool_mode == 0:
        raise NotImplementedError(_missing(f"{name} with pool_mode 'max'"))


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:  # fmt: skip
    """``pool_mode`` is 1 for means and 0 for maxima."""
    _without_maxima("roi_align_forward", pool_mode)
    bins = (spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned)
    output.copy_(_ops.roi_align_forward(input, rois, *bins))


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:  # fmt: skip
    """Adds to the gradient of the input."""
    _without_maxima("roi_align_backward", pool_mode)
    bins = (spatial_scale, aligned_height, aligned_width, *grad_input.shape)
    grad_input.add_(_ops.roi_align_backward(grad_output, rois, *bins, sampling_ratio, aligned))


def _rotated_rois(rois: Tensor, spatial_scale: float, aligned: bool, clockwise: bool) -> Tensor:
    index, centre, size, angle = rois.float().split([1, 2, 2, 1], 1)
    if not aligned:
        # Ours takes half a pixel of the map off, and lets a side be shorter than a pixel.
        centre = centre + 0.5 / spatial_scale
        size = size.clamp(min=1 / spatial_scale)
    degrees = torch.rad2deg(-angle if clockwise else angle)
    return torch.cat([index, centre, size, degrees], 1)


def roi_align_rotated_forward(input: Tensor, rois: Tensor, output: Tensor, pooled_height: int,
                              pooled_width: int, spatial_scale: float, sampling_ratio: int,
                              aligned: bool, clockwise: bool) -> None:  # fmt: skip
    """RoIs in radians, here counter-clockwise unless ``clockwise``."""
    rois = _rotated_rois(rois, spatial_scale, aligned, clockwise)
    bins = (spatial_scale, pooled_height, pooled_width, sampling_ratio)
    output.copy_(_ops.roi_align_rotated_forward(input, rois, *bins))


def roi_align_rotated_backward(grad_output: Tensor, rois: Tensor, grad_input: Tensor,
                               pooled_height: int, pooled_width: int, spatial_scale: float,
                               sampling_ratio: int, aligned: bool,
                               clockwise: bool) -> None:  # fmt: skip
    """Adds to the gradient of the input."""
    rois = _rotated_rois(rois, spatial_scale, aligned, clockwise)
    bins = (spatial_scale, pooled_height, pooled_width, *grad_input.shape, sampling_ratio)
    grad_input.add_(_ops.roi_align_rotated_backward(grad_output, rois, *bins))


def _one_hot(input: Tensor, target: Tensor) -> Tensor:
    classes = torch.arange(input.size(1), device=input.device)
    return target.unsqueeze(1).eq(classes).to(input.dtype)


def _row_weights(weight: Tensor, target: Tensor) -> Tensor | float:
    """The weight of each row's class; 1 for the background, where mmcv reads beyond the end."""
    if not weight.numel():
        return 1.0
    known = (target >= 0) & (target < weight.numel())
    return weight[target.clamp(0, weight.numel() - 1)].where(known, 1)


def _by_row(weights: Tensor | float) -> Tensor | float:
    return weights[:, None] if isinstance(weights, Tensor) else weights


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """``[N, C]`` losses of classes 0..C-1; any other class is the background."""
    loss = _ops.sigmoid_focal_loss_forward(input, _one_hot(input, target), alpha, gamma)
    output.copy_(loss * _by_row(_row_weights(weight, target)))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """The derivative of each loss."""
    ones = torch.ones_like(input)
    grad = _ops.sigmoid_focal_loss_backward(ones, input, _one_hot(input, target), alpha, gamma)
    grad_input.copy_(grad * _by_row(_row_weights(weight, target)))


def _of_class(softmax: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Each row's probability of its class, and its logarithm."""
    p = softmax.gather(1, target.clamp(min=0)[:, None])[:, 0]
    return p, p.clamp(min=_TINY).log()


def softmax_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """``[N]`` losses of probabilities; a negative class is ignored."""
    p, log_p = _of_class(input, target)
    loss = -alpha * (1 - p) ** gamma * log_p * _row_weights(weight, target)
    output.copy_(loss.masked_fill(target < 0, 0))


def softmax_focal_loss_backward(input: Tensor, target: Tensor, weight: Tensor, buff: Tensor,
                                grad_input: Tensor, gamma: float,
                                alpha: float) -> None:  # fmt: skip
    """The derivative of each loss to its row's logits."""
    p, log_p = _of_class(input, target)
    slope = gamma * (1 - p) ** (gamma - 1) * p * log_p if gamma else 0
    per_row = alpha * (slope - (1 - p) ** gamma) * _row_weights(weight, target)
    buff.copy_(per_row.masked_fill(target < 0, 0))
    grad_input.copy_(buff[:, None] * (_one_hot(input, target) - input))


def _rows(x: Tensor, planes: int, output: Tensor) -> Tensor:
    """The first ``planes`` planes of the output's size that lie in the memory of each image."""
    height, width = output.shape[2:]
    if x.shape[1:] == (planes, height, width):
        return x
    if x.shape[1:].numel() < planes * height * width:
        raise RuntimeError(
            f"detops.compat.mmcv: offset and mask must have {planes} planes of {height} x {width}, "
            f"got {list(x.shape)}"
        )
    return x.flatten(1)[:, : planes * height * width].unflatten(1, (planes, height, width))


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor,
                                  kernel_h: int, kernel_w: int, stride_h: int, stride_w: int,
                                  pad_h: int, pad_w: int, dilation_h: int, dilation_w: int,
                                  group: int, deformable_group: int,
                                  with_bias: bool) -> None:  # fmt: skip
    """Offsets and masks larger than the output are read by rows of the output, as they lie."""
    points = deformable_group * kernel_h * kernel_w
    _ops.modulated_deform_conv_forward(
        *(input, weight, bias, ones, _rows(offset, 2 * points, output)),
        *(_rows(mask, points, output), output, columns, kernel_h, kernel_w, stride_h, stride_w),
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
    """Adds to the gradients of weight and bias; the others are set."""
    points = deformable_group * kernel_h * kernel_w
    offset_rows, mask_rows = (
        _rows(offset, 2 * points, grad_output),
        _rows(mask, points, grad_output),
    )
    grads = torch.empty_like(offset_rows), torch.empty_like(mask_rows)
    _ops.modulated_deform_conv_backward(
        *(input, weight, bias, ones, offset_rows, mask_rows, columns, grad_input, grad_weight),
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
    """The batch need not be a multiple of ``im2col_step``."""
    levels = value_spatial_shapes, value_level_start_index
    return _ops.ms_deform_attn_forward(value, *levels, sampling_locations, attention_weights)


def ms_deform_attn_backward(value: Tensor, value_spatial_shapes: Tensor,
                            value_level_start_index: Tensor, sampling_locations: Tensor,
                            attention_weights: Tensor, grad_output: Tensor, grad_value: Tensor,
                            grad_sampling_loc: Tensor, grad_attn_weight: Tensor,
                            im2col_step: int) -> None:  # fmt: skip
    """The gradient of the value is added to, the others are set."""
    grads = _ops.ms_deform_attn_backward(
        *(grad_output, value, value_spatial_shapes, value_level_start_index),
        *(sampling_locations, attention_weights),
    )
    grad_value.add_(grads[0])
    grad_sampling_loc.copy_(grads[1])
    grad_attn_weight.copy_(grads[2])


def get_compiler_version() -> str:
    """In the place of a compiler's."""
    from .. import __version__

    return f"detops {__version__}"


def get_compiling_cuda_version() -> str:
    """Of the CUDA half."""
    version = _C.cuda_version
    return f"{version // 1000}.{version // 10 % 100}" if version else "not available"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "bbox_overlaps": bbox_overlaps,
    "box_iou_rotated": box_iou_rotated,
    "carafe_forward": carafe_forward,
    "carafe_backward": carafe_backward,
    "carafe_naive_forward": carafe_naive_forward,
    "carafe_naive_backward": carafe_naive_backward,
    "deform_conv_forward": _ops.deform_conv_forward,
    "deform_conv_backward_input": _ops.deform_conv_backward_input,
    "deform_conv_backward_parameters": _ops.deform_conv_backward_parameters,
    "deform_roi_pool_forward": deform_roi_pool_forward,
    "deform_roi_pool_backward": deform_roi_pool_backward,
    "get_compiler_version": get_compiler_version,
    "get_compiling_cuda_version": get_compiling_cuda_version,
    "masked_col2im_forward": masked_col2im_forward,
    "masked_im2col_forward": masked_im2col_forward,
    "modulated_deform_conv_forward": modulated_deform_conv_forward,
    "modulated_deform_conv_backward": modulated_deform_conv_backward,
    "ms_deform_attn_forward": ms_deform_attn_forward,
    "ms_deform_attn_backward": ms_deform_attn_backward,
    "nms": nms,
    "nms_rotated": nms_rotated,
    "roi_align_forward": roi_align_forward,
    "roi_align_backward": roi_align_backward,
    "roi_align_rotated_forward": roi_align_rotated_forward,
    "roi_align_rotated_backward": roi_align_rotated_backward,
    "roi_pool_forward": roi_pool_forward,
    "roi_pool_backward": roi_pool_backward,
    "sigmoid_focal_loss_forward": sigmoid_focal_loss_forward,
    "sigmoid_focal_loss_backward": sigmoid_focal_loss_backward,
    "softmax_focal_loss_forward": softmax_focal_loss_forward,
    "softmax_focal_loss_backward": softmax_focal_loss_backward,
    "softnms": softnms,
}


def _missing(name: str) -> str:
    return f"detops.compat.mmcv: mmcv._ext.{name} is not among the ops of detops"


def _absent(name: str) -> Callable[..., Any]:
    """What the module has under a name that is not in FUNCTIONS."""
    if name.startswith("__"):
        raise AttributeError(f"module 'mmcv._ext' has no attribute {name!r}")

    def refuse(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(_missing(name))

    return refuse


def contents() -> dict[str, Any]:
    """What ``mmcv._ext`` holds; versions of mmcv load different names."""
    return {**FUNCTIONS, "__getattr__": _absent}
