"""Kernels of torchvision's dispatcher ops, on detops ops.

torchvision's autograd, autocast and fake tensors stay in place and call these kernels. Results have
torchvision's layout: contiguous, whatever the layout of the input.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ... import _C
from ...registration import kernel

_rotated = kernel("box_iou_rotated")


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return _C.nms(boxes, scores, iou_threshold)


def _roi_align(input: Tensor, boxes: Tensor, *pooling: Any) -> Tensor:
    return _C.roi_align_forward(input, boxes, *pooling).contiguous()


def _roi_align_backward(grad: Tensor, boxes: Tensor, *pooling: Any) -> Tensor:
    return _C.roi_align_backward(grad.contiguous(), boxes, *pooling)


def _roi_pool(input: Tensor, boxes: Tensor, *pooling: Any) -> tuple[Tensor, Tensor]:
    output, argmax = _C.roi_pool_forward(input, boxes, *pooling)
    return output.contiguous(), argmax.contiguous()


def _roi_pool_backward(grad: Tensor, boxes: Tensor, argmax: Tensor, *pooling: Any) -> Tensor:
    grad = grad.contiguous()
    return _C.roi_pool_backward(grad, grad, boxes, argmax, *pooling)


def _box_iou_rotated(boxes1: Tensor, boxes2: Tensor) -> Tensor:
    return _rotated(boxes1, boxes2).float()


def _channel_mapping(pooled: Tensor) -> Tensor:
    """Returns the input channel that each bin of ``[K, C, height, width]`` was read from."""
    channels = torch.arange(pooled.shape[1:].numel(), dtype=torch.int32, device=pooled.device)
    return channels.view(pooled.shape[1:]).expand(pooled.shape).contiguous()


def _ps_roi_align(input: Tensor, boxes: Tensor, *pooling: Any) -> tuple[Tensor, Tensor]:
    output = _C.ps_roi_align_forward(input, boxes, *pooling).contiguous()
    return output, _channel_mapping(output)


def _ps_roi_align_backward(grad: Tensor, boxes: Tensor, mapping: Tensor, *pooling: Any) -> Tensor:
    scale, height, width, sampling_ratio, *size = pooling
    backward: Callable[..., Tensor] = _C.ps_roi_align_backward
    return backward(grad.contiguous(), boxes, scale, height, width, *size, sampling_ratio)


def _ps_roi_pool(input: Tensor, boxes: Tensor, *pooling: Any) -> tuple[Tensor, Tensor]:
    output = _C.ps_roi_pool_forward(input, boxes, *pooling).contiguous()
    return output, _channel_mapping(output)


def _ps_roi_pool_backward(grad: Tensor, boxes: Tensor, mapping: Tensor, *pooling: Any) -> Tensor:
    return _C.ps_roi_pool_backward(grad.contiguous(), boxes, *pooling)


def _deform_conv2d(
    input: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor, *window: Any
) -> Tensor:
    stride, padding, dilation, masked = window[:2], window[2:4], window[4:6], window[8]
    return _C.deform_conv2d_forward(
        input, offset, mask if masked else None, weight, bias, stride, padding, dilation
    ).contiguous()


def _deform_conv2d_backward(
    grad: Tensor,
    input: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    *window: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    stride, padding, dilation, masked = window[:2], window[2:4], window[4:6], bool(window[8])
    grad_input, grad_offset, grad_mask, grad_weight, grad_bias = _C.deform_conv2d_backward(
        grad.contiguous(),
        input,
        offset,
        mask if masked else None,
        weight,
        bias,
        stride,
        padding,
        dilation,
        [True, True, masked, True, True],
    )
    return (
        grad_input,
        grad_weight,
        grad_offset,
        grad_mask if masked else torch.zeros_like(mask),
        grad_bias,
    )


KERNELS: dict[str, Callable] = {
    "nms": _nms,
    "box_iou_rotated": _box_iou_rotated,
    "roi_align": _roi_align,
    "_roi_align_backward": _roi_align_backward,
    "roi_pool": _roi_pool,
    "_roi_pool_backward": _roi_pool_backward,
    "ps_roi_align": _ps_roi_align,
    "_ps_roi_align_backward": _ps_roi_align_backward,
    "ps_roi_pool": _ps_roi_pool,
    "_ps_roi_pool_backward": _ps_roi_pool_backward,
    "deform_conv2d": _deform_conv2d,
    "_deform_conv2d_backward": _deform_conv2d_backward,
}
