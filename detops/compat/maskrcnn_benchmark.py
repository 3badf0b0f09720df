# SPDX-License-Identifier: MIT
"""The functions that a detector of the maskrcnn-benchmark family calls by position.

Those that are ops of this package under the same name are not here. They write into buffers of the
caller, and stand in ``torch.ops.detops`` and ``detops._C``; each is written with ops that have
kernels, and so runs wherever they do. ``maskrcnn_benchmark._C`` is them and :func:`nms`, whose
conventions are that project's.
"""

from typing import Any

import torch
from torch import Tensor

from ..contract import MOST_SIZE, dtype_name
from ..contract_call import CLASSES
from ..registration import CONTRACTS, buffered
from .thresholds import at_least, rounded_above, rounded_at_least, with_last_pixel

_ops = torch.ops.detops


def _refuse(op: str, what: str) -> None:
    raise RuntimeError(f"detops.{op}: {what}")


def _check_buffer(op: str, name: str, buffer: Tensor, like: Tensor) -> None:
    """A buffer has memory of its own: what is written to a negated view would be negated."""
    is_taken, words = CLASSES["float"]
    if not is_taken(buffer.dtype):
        _refuse(op, f"{name} must be {words}, got {dtype_name(buffer.dtype)}")
    if buffer.device != like.device:
        where = f"on the device of input ({like.device})"
        _refuse(op, f"{name} must be {where}, got {buffer.device}")
    if buffer.is_neg():
        _refuse(op, f"{name} must not be a view of negated numbers")


def _check_shape(op: str, name: str, x: Tensor, *shape: int) -> None:
    if tuple(x.shape) != shape:
        _refuse(op, f"{name} must be {list(shape)}, got {list(x.shape)}")


def _write(to: Tensor, source: Tensor) -> None:
    """A buffer that a caller left empty, or made too small, takes the size of what is written."""
    if to.shape != source.shape:
        to.resize_(source.shape)
    to.copy_(source)


Pair = tuple[int, int]


class _Window:
    """Sizes along y and x, and groups."""

    def __init__(self, op: str, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair,
                 groups: int, offset_groups: int) -> None:  # fmt: skip
        self.op = op
        self.kernel = kernel
        self.sizes = (list(stride), list(padding), list(dilation))
        self.groups, self.offset_groups = groups, offset_groups

    def check(self, input: Tensor, offset: Tensor, weight: Tensor) -> None:
        """The ops read from shapes what callers here say in numbers, too."""
        if not input.dim() == offset.dim() == weight.dim() == 4:
            dims = f"{input.dim()}, {offset.dim()} and {weight.dim()}"
            _refuse(self.op, f"input, offset and weight must have 4 dimensions, got {dims}")
        for groups in (self.groups, self.offset_groups):
            if not 1 <= groups <= MOST_SIZE:
                _refuse(self.op, f"groups must be in [1, {MOST_SIZE}], got {groups}")
        high, wide = self.kernel
        if tuple(weight.shape[2:]) != self.kernel:
            _refuse(
                self.op, f"weight must have a kernel of {high} x {wide}, got {list(weight.shape)}"
            )
        if weight.size(1) * self.groups != input.size(1):
            channels = f"{input.size(1)} / {self.groups} channels"
            _refuse(self.op, f"weight must have {channels}, got {list(weight.shape)}")
        planes = 2 * high * wide * self.offset_groups
        if offset.size(1) != planes:
            _refuse(self.op, f"offset must have {planes} channels, got {list(offset.shape)}")

    def forward(self, input: Tensor, offset: Tensor, mask: Tensor | None, weight: Tensor,
                bias: Tensor | None) -> Tensor:  # fmt: skip
        """The convolution."""
        self.check(input, offset, weight)
        return _ops.deform_conv2d_forward(input, offset, mask, weight, bias, *self.sizes)

    def backward(self, grad: Tensor, input: Tensor, offset: Tensor, mask: Tensor | None,
                 weight: Tensor, bias: Tensor | None, wanted: list[bool]) -> Any:  # fmt: skip
        """The gradients of input, offset, mask, weight and bias that are wanted."""
        self.check(input, offset, weight)
        # A sample at exactly -1 has no gradient here: torchvision's rule is another.
        return _ops.deform_conv2d_backward(
            grad, input, offset, mask, weight, bias, *self.sizes, wanted, False
        )


# Sizes along x come before those along y in the next three, `columns` and `ones` are left alone,
# and the batch need not be a multiple of `im2col_step`.


def _window(op: str, numbers: tuple) -> _Window:
    kW, kH, dW, dH, padW, padH, dilationW, dilationH, group, deformable_group = numbers
    sizes = ((kH, kW), (dH, dW), (padH, padW), (dilationH, dilationW))
    return _Window(op, *sizes, group, deformable_group)


def deform_conv_forward(input: Tensor, weight: Tensor, offset: Tensor, output: Tensor,
                        columns: Tensor, ones: Tensor, *numbers: int) -> int:  # fmt: skip
    """Writes the convolution into ``output``."""
    op = "deform_conv_forward"
    _check_buffer(op, "output", output, input)
    _write(output, _window(op, numbers[:-1]).forward(input, offset, None, weight, None))
    return 1


def deform_conv_backward_input(input: Tensor, offset: Tensor, grad_output: Tensor,
                               grad_input: Tensor, grad_offset: Tensor, weight: Tensor,
                               columns: Tensor, *numbers: int) -> int:  # fmt: skip
    """Writes the gradients of input and offset."""
    op = "deform_conv_backward_input"
    _check_buffer(op, "gradInput", grad_input, input)
    _check_buffer(op, "gradOffset", grad_offset, input)
    grads = _window(op, numbers[:-1]).backward(
        grad_output, input, offset, None, weight, None, [True, True, False, False, False]
    )
    _write(grad_input, grads[0])
    _write(grad_offset, grads[1])
    return 1


def deform_conv_backward_parameters(input: Tensor, offset: Tensor, grad_output: Tensor,
                                    grad_weight: Tensor, columns: Tensor, ones: Tensor,
                                    *numbers: Any) -> int:  # fmt: skip
    """Adds ``scale`` times the gradient of the weights."""
    op = "deform_conv_backward_parameters"
    _check_buffer(op, "gradWeight", grad_weight, input)
    # Only the weights' sizes matter to their own gradient.
    grads = _window(op, numbers[:-2]).backward(
        grad_output, input, offset, None, grad_weight, None, [False, False, False, True, False]
    )
    grad_weight.add_(grads[3] * numbers[-2])  # `alpha` must be a number of its dtype
    return 1


def _modulated(op: str, numbers: tuple) -> _Window:
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = numbers[:8]
    sizes = (
        *((kernel_h, kernel_w), (stride_h, stride_w)),
        *((pad_h, pad_w), (dilation_h, dilation_w)),
    )
    return _Window(op, *sizes, *numbers[8:])


def modulated_deform_conv_forward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                  offset: Tensor, mask: Tensor, output: Tensor, columns: Tensor,
                                  *numbers: Any) -> None:  # fmt: skip
    """Writes the convolution into ``output``."""
    op, with_bias = "modulated_deform_conv_forward", numbers[-1]
    _check_buffer(op, "output", output, input)
    window = _modulated(op, numbers[:-1])
    _write(output, window.forward(input, offset, mask, weight, bias if with_bias else None))


def modulated_deform_conv_backward(input: Tensor, weight: Tensor, bias: Tensor, ones: Tensor,
                                   offset: Tensor, mask: Tensor, columns: Tensor,
                                   grad_input: Tensor, grad_weight: Tensor, grad_bias: Tensor,
                                   grad_offset: Tensor, grad_mask: Tensor, grad_output: Tensor,
                                   *numbers: Any) -> None:  # fmt: skip
    """Adds to the gradients of weight and bias; the others are set."""
    op, with_bias = "modulated_deform_conv_backward", numbers[-1]
    _check_buffer(op, "grad_input", grad_input, input)
    _check_buffer(op, "grad_offset", grad_offset, input)
    _check_buffer(op, "grad_mask", grad_mask, input)
    _check_buffer(op, "grad_weight", grad_weight, input)
    _check_shape(op, "grad_weight", grad_weight, *weight.shape)
    if with_bias:
        _check_buffer(op, "grad_bias", grad_bias, input)
        _check_shape(op, "grad_bias", grad_bias, *bias.shape)
    wanted = [True, True, True, True, bool(with_bias)]
    grads = _modulated(op, numbers[:-1]).backward(
        grad_output, input, offset, mask, weight, bias if with_bias else None, wanted
    )
    _write(grad_input, grads[0])
    _write(grad_offset, grads[1])
    _write(grad_mask, grads[2])
    grad_weight.add_(grads[3])
    if with_bias:
        grad_bias.add_(grads[4])


def deform_psroi_pooling_forward(input: Tensor, bbox: Tensor, trans: Tensor, out: Tensor,
                                 top_count: Tensor, no_trans: int, spatial_scale: float,
                                 output_dim: int, group_size: int, pooled_size: int,
                                 part_size: int, sample_per_part: int,
                                 trans_std: float) -> None:  # fmt: skip
    """Writes the pooled RoIs, and how many samples count in each bin."""
    op = "deform_psroi_pooling_forward"
    _check_buffer(op, "out", out, input)
    _check_buffer(op, "top_count", top_count, input)
    output, count = _ops.deform_psroi_pool_forward(
        *(input, bbox, None if no_trans else trans, spatial_scale, output_dim, group_size),
        *(pooled_size, pooled_size, part_size, sample_per_part, trans_std),
    )
    _write(out, output)
    # One count for all channels of a class here, one for each there.
    _write(top_count, count.repeat_interleave(output_dim // count.size(1), 1))


def deform_psroi_pooling_backward(out_grad: Tensor, input: Tensor, bbox: Tensor, trans: Tensor,
                                  top_count: Tensor, input_grad: Tensor, trans_grad: Tensor,
                                  no_trans: int, spatial_scale: float, output_dim: int,
                                  group_size: int, pooled_size: int, part_size: int,
                                  sample_per_part: int, trans_std: float) -> None:  # fmt: skip
    """Adds to the gradients of input and offsets."""
    op = "deform_psroi_pooling_backward"
    if not no_trans and trans.dim() != 4:
        shape = f"[K, 2 * classes, {part_size}, {part_size}]"
        _refuse(op, f"trans must be {shape}, got {list(trans.shape)}")
    if bbox.dim() != 2:
        _refuse(op, f"bbox must be [K, 5], got {list(bbox.shape)}")
    _check_shape(op, "out_grad", out_grad, bbox.size(0), output_dim, pooled_size, pooled_size)
    _check_shape(op, "top_count", top_count, *out_grad.shape)
    _check_buffer(op, "input_grad", input_grad, input)
    if not no_trans:
        _check_buffer(op, "trans_grad", trans_grad, input)
    classes = 1 if no_trans else max(1, trans.size(1) // 2)
    grad_input, grad_trans = _ops.deform_psroi_pool_backward(
        *(out_grad, input, bbox, None if no_trans else trans),
        *(top_count[:, :: max(1, output_dim // classes)], spatial_scale, group_size),
        *(part_size, sample_per_part, trans_std),
    )
    _check_shape(op, "input_grad", input_grad, *grad_input.shape)
    if not no_trans:
        _check_shape(op, "trans_grad", trans_grad, *grad_trans.shape)
        trans_grad.add_(grad_trans)
    input_grad.add_(grad_input)


# Class k is column k - 1 of the logits; 0 is the background, and a negative target is ignored.


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
    """``[N, C]`` losses."""
    dense = _one_hot("sigmoid_focalloss_forward", logits, targets, num_classes)
    return _without_ignored(_ops.sigmoid_focal_loss_forward(logits, dense, alpha, gamma), targets)


def sigmoid_focalloss_backward(
    logits: Tensor, targets: Tensor, d_losses: Tensor, num_classes: int, gamma: float, alpha: float
) -> Tensor:
    """The gradient of the logits."""
    op = "sigmoid_focalloss_backward"
    dense = _one_hot(op, logits, targets, num_classes, d_losses=d_losses)
    grad = _ops.sigmoid_focal_loss_backward(d_losses, logits, dense, alpha, gamma)
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
    buffered(_function.__name__, _function)


NAMES = (
    "roi_align_forward roi_align_backward roi_pool_forward roi_pool_backward deform_conv_forward "
    "deform_conv_backward_input deform_conv_backward_parameters modulated_deform_conv_forward "
    "modulated_deform_conv_backward deform_psroi_pooling_forward deform_psroi_pooling_backward "
    "sigmoid_focalloss_forward sigmoid_focalloss_backward"
).split()


def nms(dets: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """The kept boxes in the order of the boxes; a box contains its last pixel.

    A box falls where the IoU reaches the threshold on the CPU, and where it exceeds it on CUDA.
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
    """What ``maskrcnn_benchmark._C`` holds."""
    return {"nms": nms, **{name: getattr(_ops, name) for name in NAMES}}
