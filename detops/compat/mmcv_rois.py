# SPDX-License-Identifier: MIT
"""mmcv's RoI ops on detops ops. Rotated RoIs are in radians."""

import torch
from torch import Tensor

_ops = torch.ops.detops


def roi_align_forward(input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor,
                      argmax_x: Tensor, aligned_height: int, aligned_width: int,
                      spatial_scale: float, sampling_ratio: int, pool_mode: int,
                      aligned: bool) -> None:  # fmt: skip
    """Pools means if ``pool_mode`` is 1, and maxima if it is 0."""
    bins = (spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned)
    if pool_mode == 1:
        output.copy_(_ops.roi_align_forward(input, rois, *bins))
        return
    results = _ops.roi_align_max_forward(input, rois, *bins)
    for buffer, result in zip((output, argmax_y, argmax_x), results, strict=True):
        buffer.copy_(result)


def roi_align_backward(grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor,
                       grad_input: Tensor, aligned_height: int, aligned_width: int,
                       spatial_scale: float, sampling_ratio: int, pool_mode: int,
                       aligned: bool) -> None:  # fmt: skip
    """Adds to the gradient of the input."""
    bins = (spatial_scale, aligned_height, aligned_width, *grad_input.shape)
    settings = sampling_ratio, aligned
    if pool_mode == 1:
        grad_input.add_(_ops.roi_align_backward(grad_output, rois, *bins, *settings))
    else:
        argmax = argmax_y, argmax_x
        grad_input.add_(_ops.roi_align_max_backward(grad_output, rois, *argmax, *bins, *settings))


def _rotated_rois(rois: Tensor, spatial_scale: float, aligned: bool, clockwise: bool) -> Tensor:
    index, centre, size, angle = rois.float().split([1, 2, 2, 1], 1)
    if not aligned:
        # Our op subtracts half a pixel of the feature map, and accepts sides shorter than a pixel.
        centre = centre + 0.5 / spatial_scale
        size = size.clamp(min=1 / spatial_scale)
    degrees = torch.rad2deg(-angle if clockwise else angle)
    return torch.cat([index, centre, size, degrees], 1)


def roi_align_rotated_forward(input: Tensor, rois: Tensor, output: Tensor, pooled_height: int,
                              pooled_width: int, spatial_scale: float, sampling_ratio: int,
                              aligned: bool, clockwise: bool) -> None:  # fmt: skip
    """Accepts RoIs in radians, counter-clockwise unless ``clockwise``."""
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


def _angles_to_degrees(rois: Tensor) -> Tensor:
    """Converts the angles of RoIs to degrees; the op itself handles ``clockwise``."""
    return torch.cat([rois[:, :5].float(), torch.rad2deg(rois[:, 5:].float())], 1)


def riroi_align_rotated_forward(features: Tensor, rois: Tensor, output: Tensor, pooled_height: int,
                                pooled_width: int, spatial_scale: float, num_samples: int,
                                num_orientations: int, clockwise: bool) -> None:  # fmt: skip
    """Accepts RoIs in radians, counter-clockwise unless ``clockwise``."""
    bins = (spatial_scale, pooled_height, pooled_width, num_samples, num_orientations, clockwise)
    output.copy_(_ops.riroi_align_rotated_forward(features, _angles_to_degrees(rois), *bins))


def riroi_align_rotated_backward(top_grad: Tensor, rois: Tensor, bottom_grad: Tensor,
                                 pooled_height: int, pooled_width: int, spatial_scale: float,
                                 num_samples: int, num_orientations: int,
                                 clockwise: bool) -> None:  # fmt: skip
    """Adds to the gradient of the features."""
    bins = (spatial_scale, pooled_height, pooled_width, *bottom_grad.shape)
    settings = num_samples, num_orientations, clockwise
    bottom_grad.add_(
        _ops.riroi_align_rotated_backward(top_grad, _angles_to_degrees(rois), *bins, *settings)
    )


def border_align_forward(input: Tensor, boxes: Tensor, output: Tensor, argmax_idx: Tensor,
                         pool_size: int) -> None:  # fmt: skip
    """Writes the largest sample of each border, and its index."""
    pooled, argmax = _ops.border_align_forward(input, boxes, pool_size)
    output.copy_(pooled)
    argmax_idx.copy_(argmax)


def border_align_backward(grad_output: Tensor, boxes: Tensor, argmax_idx: Tensor,
                          grad_input: Tensor, pool_size: int) -> None:  # fmt: skip
    """Adds to the gradient of the input."""
    size = pool_size, *grad_input.shape[2:]
    grad_input.add_(_ops.border_align_backward(grad_output, boxes, argmax_idx, *size))


def prroi_pool_forward(input: Tensor, rois: Tensor, output: Tensor, pooled_height: int,
                       pooled_width: int, spatial_scale: float) -> None:  # fmt: skip
    """Writes the mean of each bin, integrated exactly."""
    bins = spatial_scale, pooled_height, pooled_width
    output.copy_(_ops.prroi_pool_forward(input, rois, *bins))


def prroi_pool_backward(grad_output: Tensor, rois: Tensor, grad_input: Tensor, pooled_height: int,
                        pooled_width: int, spatial_scale: float) -> None:  # fmt: skip
    """Adds to the gradient of the input; this gradient does not depend on the input's values."""
    settings = spatial_scale, True, False
    grad_input.add_(_ops.prroi_pool_backward(grad_output, grad_input, rois, *settings)[0])


def prroi_pool_coor_backward(output: Tensor, grad_output: Tensor, input: Tensor, rois: Tensor,
                             grad_rois: Tensor, pooled_height: int, pooled_width: int,
                             spatial_scale: float) -> None:  # fmt: skip
    """Adds to the gradient of the boxes."""
    settings = spatial_scale, False, True
    grad_rois.add_(_ops.prroi_pool_backward(grad_output, input, rois, *settings)[1])
