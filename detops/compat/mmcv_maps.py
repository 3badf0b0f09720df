# SPDX-License-Identifier: MIT
"""mmcv's ops on whole feature maps, and its deformable RoI pooling, on detops ops."""

import torch
import torch.nn.functional as F
from torch import Tensor

_ops = torch.ops.detops


def carafe_naive_forward(features: Tensor, masks: Tensor, output: Tensor, kernel_size: int,
                         group_size: int, scale_factor: int) -> None:  # fmt: skip
    """Does the same as carafe_forward, without its buffers."""
    output.copy_(_ops.carafe_forward(features, masks, kernel_size, group_size, scale_factor))


def carafe_naive_backward(top_grad: Tensor, features: Tensor, masks: Tensor, bottom_grad: Tensor,
                          mask_grad: Tensor, kernel_size: int, group_size: int,
                          scale_factor: int) -> None:  # fmt: skip
    """Overwrites both gradients."""
    sizes = kernel_size, group_size, scale_factor
    grad_features, grad_masks = _ops.carafe_backward(top_grad, features, masks, *sizes)
    bottom_grad.copy_(grad_features)
    mask_grad.copy_(grad_masks)


def carafe_forward(features: Tensor, masks: Tensor, rfeatures: Tensor, routput: Tensor,
                   rmasks: Tensor, output: Tensor, kernel_size: int, group_size: int,
                   scale_factor: int) -> None:  # fmt: skip
    """Copies the features into ``rfeatures``, which mmcv passes on to the backward pass.

    The other two buffers are left unchanged.
    """
    rfeatures.copy_(features)
    carafe_naive_forward(features, masks, output, kernel_size, group_size, scale_factor)


def carafe_backward(top_grad: Tensor, rfeatures: Tensor, masks: Tensor, rtop_grad: Tensor,
                    rbottom_grad_hs: Tensor, rbottom_grad: Tensor, rmask_grad: Tensor,
                    bottom_grad: Tensor, mask_grad: Tensor, kernel_size: int, group_size: int,
                    scale_factor: int) -> None:  # fmt: skip
    """Overwrites both gradients; see carafe_forward."""
    sizes = kernel_size, group_size, scale_factor
    carafe_naive_backward(top_grad, rfeatures, masks, bottom_grad, mask_grad, *sizes)


def masked_im2col_forward(im: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, col: Tensor,
                          kernel_h: int, kernel_w: int, pad_h: int,
                          pad_w: int) -> None:  # fmt: skip
    """Writes the kernel window at each position as a column ``[C * kh * kw, positions]``."""
    padded = F.pad(im[0], (pad_w, pad_w, pad_h, pad_h))
    rows = mask_h_idx[:, None, None] + torch.arange(kernel_h, device=im.device)[:, None]
    cols = mask_w_idx[:, None, None] + torch.arange(kernel_w, device=im.device)
    col.copy_(padded[:, rows, cols].permute(0, 2, 3, 1).reshape(col.shape))


def masked_col2im_forward(col: Tensor, mask_h_idx: Tensor, mask_w_idx: Tensor, im: Tensor,
                          height: int, width: int, channels: int) -> None:  # fmt: skip
    """Writes each column ``[C]`` to its position, and leaves other positions unchanged."""
    im[0][:, mask_h_idx, mask_w_idx] = col


def deform_roi_pool_forward(input: Tensor, rois: Tensor, offset: Tensor, output: Tensor,
                            pooled_height: int, pooled_width: int, spatial_scale: float,
                            sampling_ratio: int, gamma: float) -> None:  # fmt: skip
    """Treats an empty ``offset`` as no offsets."""
    bins = spatial_scale, pooled_height, pooled_width, sampling_ratio, gamma
    used_offset = offset if offset.numel() else None
    output.copy_(_ops.deform_roi_pool_forward(input, rois, used_offset, *bins))


def deform_roi_pool_backward(grad_output: Tensor, input: Tensor, rois: Tensor, offset: Tensor,
                             grad_input: Tensor, grad_offset: Tensor, pooled_height: int,
                             pooled_width: int, spatial_scale: float, sampling_ratio: int,
                             gamma: float) -> None:  # fmt: skip
    """Adds to the gradient of the input, and overwrites that of the offsets."""
    used_offset = offset if offset.numel() else None
    settings = spatial_scale, sampling_ratio, gamma
    input_grad, offset_grad = _ops.deform_roi_pool_backward(
        grad_output, input, rois, used_offset, *settings
    )
    grad_input.add_(input_grad)
    if used_offset is not None:
        grad_offset.copy_(offset_grad)


def active_rotated_filter_forward(input: Tensor, indices: Tensor, output: Tensor) -> None:
    """Adds weights with equal destinations; mmcv keeps the last on CPU, and any on CUDA."""
    output.copy_(_ops.active_rotated_filter_forward(input, indices))


def active_rotated_filter_backward(grad_out: Tensor, indices: Tensor, grad_in: Tensor) -> None:
    """Overwrites the gradient."""
    planes = grad_in.shape[:2]
    grad_in.copy_(_ops.active_rotated_filter_backward(grad_out, indices, *planes))


def _to_detops_boxes(boxes: Tensor) -> Tensor:
    """Converts mmcv's (cy, cx, w, h, angle in clockwise radians) boxes to our convention."""
    y, x, w, h, angle = boxes.unbind(-1)
    return torch.stack([x, y, w, h, -torch.rad2deg(angle)], -1)


def rotated_feature_align_forward(features: Tensor, best_bboxes: Tensor, output: Tensor,
                                  spatial_scale: float, points: int) -> None:  # fmt: skip
    """Writes the features plus the features sampled at the boxes."""
    boxes = _to_detops_boxes(best_bboxes)
    output.copy_(_ops.rotated_feature_align_forward(features, boxes, spatial_scale, points))


def rotated_feature_align_backward(top_grad: Tensor, best_bboxes: Tensor, bottom_grad: Tensor,
                                   spatial_scale: float, points: int) -> None:  # fmt: skip
    """Adds to the gradient of the features."""
    boxes = _to_detops_boxes(best_bboxes)
    bottom_grad.add_(_ops.rotated_feature_align_backward(top_grad, boxes, spatial_scale, points))
