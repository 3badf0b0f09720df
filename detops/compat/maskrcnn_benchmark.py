# SPDX-License-Identifier: MIT
"""Functions that detectors of the maskrcnn-benchmark family call by position.

Functions that exist as ops of the same name are omitted here. The functions write into buffers of
the caller, and are available in ``torch.ops.detops`` and ``detops._C``. They are composed of ops
with kernels, so they run on every device that those support. ``maskrcnn_benchmark._C`` adds
:func:`nms`, with the conventions of that project.
"""

from typing import Any

import torch
from torch import Tensor

from ..contract import MAX_SIZE
from ..registration import CONTRACTS, register_in_place
from .buffers import check_buffer, errors_as, raise_error, write
from .thresholds import at_least, rounded_above, rounded_at_least, with_last_pixel

_ops = torch.ops.detops


def _check_shape(op: str, name: str, x: Tensor, *shape: int) -> None:
    if tuple(x.shape) != shape:
        raise_error(op, f"{name} must be {list(shape)}, got {list(x.shape)}")


Pair = tuple[int, int]


class _DeformConvolution:
    """Sizes along y and x, and groups."""

    def __init__(self, op: str, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
                 groups: int, offset_groups: int) -> None:  # fmt: skip
        self.op = op
        self.kernel = kernel
        self.sizes = (list(stride), list(padding), list(dilation))
        self.groups, self.offset_groups = groups, offset_groups

    def check(self, input: Tensor, offset: Tensor, weight: Tensor) -> None:
        """Checks arguments against shapes: callers pass sizes that our ops infer from shapes."""
        if not input.dim() == offset.dim() == weight.dim() == 4:
            dims = f"{input.dim()}, {offset.dim()} and {weight.dim()}"
            raise_error(self.op, f"input, offset and weight must have 4 dimensions, got {dims}")
        for groups in (self.groups, self.offset_groups):
            if not 1 <= groups <= MAX_SIZE:
                raise_error(self.op, f"groups must be in [1, {MAX_SIZE}], got {groups}")
        kernel_h, kernel_w = self.kernel
        if tuple(weight.shape[2:]) != self.kernel:
            raise_error(
                self.op,
                f"weight must have a kernel of {kernel_h} x {kernel_w}, got {list(weight.shape)}",
            )
        if weight.size(1) * self.groups != input.size(1):
            channels = f"{input.size(1)} / {self.groups} channels"
            raise_error(self.op, f"weight must have {channels}, got {list(weight.shape)}")
        offset_channels = 2 * kernel_h * kernel_w * self.offset_groups
        if offset.size(1) != offset_channels:
            raise_error(
                self.op, f"offset must have {offset_channels} channels, got {list(offset.shape)}"
            )

    def forward(self, input: Tensor, offset: Tensor, mask: Tensor | None, weight: Tensor,
                bias: Tensor | None) -> Tensor:  # fmt: skip
        """Computes the convolution."""
        self.check(input, offset, weight)
        with errors_as(self.op):
            return _ops.deform_conv2d_forward(input, offset, mask, weight, bias, *self.sizes)

    def backward(self, grad: Tensor, input: Tensor, offset: Tensor, mask: Tensor | None,
                 weight: Tensor, bias: Tensor | None, needs_grad: list[bool]) -> Any:  # fmt: skip
        """Returns the requested gradients of input, offset, mask, weight and bias."""
        self.check(input, offset, weight)
        # Unlike in torchvision, a sample at exactly -1 has no gradient here.
        with errors_as(self.op):
            return _ops.deform_conv2d_backward(
                grad, input, offset, mask, weight, bias, *self.sizes, needs_grad, False
            )


# In the next three functions, sizes along x precede those along y. They leave `columns` and `ones`
# unchanged, and accept a batch that is no multiple of `im2col_step`.


def _deform_convolution(op: str, parameters: tuple) -> _DeformConvolution:
    kW, kH, dW, dH, padW, padH, dilationW, dilationH, group, deformable_group = parameters
    sizes = ((kH, kW), (dH, dW), (padH, padW), (dilationH, dilationW))
    return _DeformConvolution(op, *sizes, group, deformable_group)


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, *parameters: int) -> int:  # fmt: skip
    """Writes the convolution into ``output``."""
    op = "deform_conv_forward"
    check_buffer(op, "output", output, input)
    result = _deform_convolution(op, parameters[:-1]).forward(input, offset, None, weight, None)
    read = {"input": input, "weight": weight, "offset": offset}
    write(op, read, {"output": (output, result)})
    return 1


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, *parameters: int) -> int:  # fmt: skip
    """Writes the gradients of input and offset."""
    op = "deform_conv_backward_input"
    check_buffer(op, "gradInput", grad_input, input)
    check_buffer(op, "gradOffset", grad_offset, input)
    grads = _deform_convolution(op, parameters[:-1]).backward(
        grad_output, input, offset, None, weight, None, [True, True, False, False, False]
    )
    read = {"input": input, "offset": offset, "gradOutput": grad_output, "weight": weight}
    written = {"gradInput": (grad_input, grads[0]), "gradOffset": (grad_offset, grads[1])}
    write(op, read, written)
    return 1


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor,
                                    *parameters: Any) -> int:  # fmt: skip
    """Adds ``scale`` times the gradient of the weights."""
    op = "deform_conv_backward_parameters"
    check_buffer(op, "gradWeight", grad_weight, input)
    # The weight gradient depends only on the shape of the weights.
    grads = _deform_convolution(op, parameters[:-2]).backward(
        grad_output, input, offset, None, grad_weight, None, [False, False, False, True, False]
    )
    read = {"input": input, "offset": offset, "gradOutput": grad_output}
    write(
        op,
        read,
        {"gradWeight": (grad_weight, grads[3] * parameters[-2])},
        accumulated=("gradWeight",),
    )
    return 1


def _modulated_convolution(op: str, parameters: tuple) -> _DeformConvolution:
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = parameters[:8]
    sizes = (
        *((kernel_h, kernel_w), (stride_h, stride_w)),
        *((pad_h, pad_w), (dilation_h, dilation_w)),
    )
    return _DeformConvolution(op, *sizes, *parameters[8:])


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor,
                                  *parameters: Any) -> None:  # fmt: skip
    """Writes the convolution into ``output``."""
    op, with_bias = "modulated_deform_conv_forward", parameters[-1]
    check_buffer(op, "output", output, input)
    used_bias = bias if with_bias else None
    result = _modulated_convolution(op, parameters[:-1]).forward(
        input, offset, mask, weight, used_bias
    )
    read = {"input": input, "weight": weight, "bias": used_bias, "offset": offset, "mask": mask}
    write(op, read, {"output": (output, result)})


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor,
                                   *parameters: Any) -> None:  # fmt: skip
    """Adds to the gradients of weight and bias, and overwrites the others."""
    op, with_bias = "modulated_deform_conv_backward", parameters[-1]
    check_buffer(op, "grad_input", grad_input, input)
    check_buffer(op, "grad_offset", grad_offset, input)
    check_buffer(op, "grad_mask", grad_mask, input)
    check_buffer(op, "grad_weight", grad_weight, input)
    _check_shape(op, "grad_weight", grad_weight, *weight.shape)
    if with_bias:
        check_buffer(op, "grad_bias", grad_bias, input)
        _check_shape(op, "grad_bias", grad_bias, *bias.shape)
    used_bias = bias if with_bias else None
    needs_grad = [True, True, True, True, bool(with_bias)]
    grads = _modulated_convolution(op, parameters[:-1]).backward(
        grad_output, input, offset, mask, weight, used_bias, needs_grad
    )
    read = {"input": input, "weight": weight, "bias": used_bias, "offset": offset, "mask": mask}
    buffers = {"grad_input": grad_input, "grad_offset": grad_offset, "grad_mask": grad_mask}
    buffers |= {"grad_weight": grad_weight} | ({"grad_bias": grad_bias} if with_bias else {})
    written = {name: (x, grad) for (name, x), grad in zip(buffers.items(), grads, strict=False)}
    write(
        op, read | {"grad_output": grad_output}, written, accumulated=("grad_weight", "grad_bias")
    )


def deform_psroi_pooling_forward(input: Tensor, bbox: Tensor, trans: Tensor, out: Tensor,
                                 top_count: Tensor, no_trans: int, spatial_scale: float,
                                 output_dim: int, group_size: int, pooled_size: int,
                                 part_size: int, sample_per_part: int,
                                 trans_std: float) -> None:  # fmt: skip
    """Writes the pooled RoIs, and the number of samples per bin."""
    op = "deform_psroi_pooling_forward"
    check_buffer(op, "out", out, input)
    check_buffer(op, "top_count", top_count, input)
    offsets = None if no_trans else trans
    with errors_as(op):
        output, count = _ops.deform_psroi_pool_forward(
            *(input, bbox, offsets, spatial_scale, output_dim, group_size),
            *(pooled_size, pooled_size, part_size, sample_per_part, trans_std),
        )
    # Our op has one count per class; the caller expects one per output channel.
    counts = count.repeat_interleave(output_dim // count.size(1), 1)
    read = {"input": input, "bbox": bbox, "trans": offsets}
    write(op, read, {"out": (out, output), "top_count": (top_count, counts)})


def deform_psroi_pooling_backward(out_grad: Tensor, input: Tensor, bbox: Tensor, trans: Tensor,
                                  top_count: Tensor, input_grad: Tensor, trans_grad: Tensor,
                                  no_trans: int, spatial_scale: float, output_dim: int,
                                  group_size: int, pooled_size: int, part_size: int,
                                  sample_per_part: int, trans_std: float) -> None:  # fmt: skip
    """Adds to the gradients of input and offsets."""
    op = "deform_psroi_pooling_backward"
    if not no_trans and trans.dim() != 4:
        shape = f"[K, 2 * classes, {part_size}, {part_size}]"
        raise_error(op, f"trans must be {shape}, got {list(trans.shape)}")
    if bbox.dim() != 2:
        raise_error(op, f"bbox must be [K, 5], got {list(bbox.shape)}")
    _check_shape(op, "out_grad", out_grad, bbox.size(0), output_dim, pooled_size, pooled_size)
    _check_shape(op, "top_count", top_count, *out_grad.shape)
    check_buffer(op, "input_grad", input_grad, input)
    if not no_trans:
        check_buffer(op, "trans_grad", trans_grad, input)
    classes = 1 if no_trans else max(1, trans.size(1) // 2)
    offsets = None if no_trans else trans
    with errors_as(op):
        grad_input, grad_trans = _ops.deform_psroi_pool_backward(
            *(out_grad, input, bbox, offsets),
            *(top_count[:, :: max(1, output_dim // classes)], spatial_scale, group_size),
            *(part_size, sample_per_part, trans_std),
        )
    written = {"input_grad": (input_grad, grad_input)}
    if not no_trans:
        written["trans_grad"] = trans_grad, grad_trans
    for name, (buffer, grad) in written.items():
        _check_shape(op, name, buffer, *grad.shape)
    read = {"out_grad": out_grad, "input": input, "bbox": bbox, "trans": offsets}
    write(op, read | {"top_count": top_count}, written, accumulated=tuple(written))


# Class k is column k - 1 of the logits. Class 0 is the background; negative targets are ignored.


def _one_hot(op: str, logits: Tensor, targets: Tensor, num_classes: int, **others: Any) -> Tensor:
    arguments = {"logits": logits, "targets": targets, "num_classes": num_classes}
    CONTRACTS[op].check(arguments | others)
    classes = torch.arange(1, num_classes + 1, device=targets.device)
    return targets.unsqueeze(1).eq(classes).to(logits.dtype)


def _without_ignored(rows: Tensor, targets: Tensor) -> Tensor:
    return rows.masked_fill(targets.lt(0).unsqueeze(1), 0)


def sigmoid_focalloss_forward(
    logits: Tensor, targets: Tensor, num_classes: int, gamma: float, alpha: float
) -> Tensor:
    """Returns the ``[N, C]`` losses."""
    one_hot = _one_hot("sigmoid_focalloss_forward", logits, targets, num_classes)
    return _without_ignored(_ops.sigmoid_focal_loss_forward(logits, one_hot, alpha, gamma), targets)


def sigmoid_focalloss_backward(
    logits: Tensor, targets: Tensor, d_losses: Tensor, num_classes: int, gamma: float, alpha: float
) -> Tensor:
    """Returns the gradient of the logits."""
    op = "sigmoid_focalloss_backward"
    one_hot = _one_hot(op, logits, targets, num_classes, d_losses=d_losses)
    grad = _ops.sigmoid_focal_loss_backward(d_losses, logits, one_hot, alpha, gamma)
    return _without_ignored(grad, targets)


for _function in (
    deform_conv_forward,
    deform_conv_backward_input,
    deform_conv_backward_parameters,
    modulated_deform_conv_forward,
    modulated_deform_conv_backward,
    deform_psroi_pooling_forward,
    deform_psroi_pooling_backward,
    sigmoid_focalloss_forward,
    sigmoid_focalloss_backward,
):
    register_in_place(_function.__name__, _function)


NAMES = (
    "roi_align_forward roi_align_backward roi_pool_forward roi_pool_backward deform_conv_forward "
    "deform_conv_backward_input deform_conv_backward_parameters modulated_deform_conv_forward "
    "modulated_deform_conv_backward deform_psroi_pooling_forward deform_psroi_pooling_backward "
    "sigmoid_focalloss_forward sigmoid_focalloss_backward"
).split()


def nms(dets: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Returns kept boxes in their original order; boxes include their last pixel.

    A box is suppressed if the IoU reaches the threshold on CPU, or exceeds it on CUDA.
    """
    boxes = with_last_pixel(dets)
    if dets.is_cuda:
        bound = rounded_above(threshold)
    elif dets.dtype == torch.float64:
        bound = at_least(threshold, dets)
    else:
        bound = rounded_at_least(threshold)
    return _ops.nms(boxes, scores, bound).sort().values


def contents() -> dict[str, Any]:
    """Returns the contents of ``maskrcnn_benchmark._C``."""
    return {"nms": nms, **{name: getattr(_ops, name) for name in NAMES}}
