"""Positional calls of detops._C, as a maskrcnn-benchmark detector calls its own `_C`.

Only the signatures come from that project, not the code.
"""

import torch

from detops import _C


class RoIAlign(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, rois, size, scale, sampling_ratio):
        ctx.save_for_backward(rois)
        ctx.geometry = (scale, size, size, *input.shape, sampling_ratio)
        return _C.roi_align_forward(input, rois, scale, size, size, sampling_ratio)

    @staticmethod
    def backward(ctx, grad):
        (rois,) = ctx.saved_tensors
        return _C.roi_align_backward(grad, rois, *ctx.geometry), None, None, None, None


class RoIPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, rois, size, scale):
        output, argmax = _C.roi_pool_forward(input, rois, scale, size, size)
        ctx.save_for_backward(input, rois, argmax)
        ctx.geometry = (scale, size, size, *input.shape)
        return output

    @staticmethod
    def backward(ctx, grad):
        input, rois, argmax = ctx.saved_tensors
        return _C.roi_pool_backward(grad, input, rois, argmax, *ctx.geometry), None, None, None


class SigmoidFocalLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets, gamma, alpha):
        ctx.save_for_backward(logits, targets)
        ctx.numbers = (logits.shape[1], gamma, alpha)
        return _C.sigmoid_focalloss_forward(logits, targets, *ctx.numbers)

    @staticmethod
    def backward(ctx, grad):
        logits, targets = ctx.saved_tensors
        grad = grad.contiguous()
        return _C.sigmoid_focalloss_backward(logits, targets, grad, *ctx.numbers), None, None, None


class DeformConv(torch.autograd.Function):
    """Version 1: all arguments by position, x sizes before y sizes."""

    @staticmethod
    def forward(ctx, x, offset, weight, stride, pad, dilation, groups, offset_groups):
        ctx.save_for_backward(x, offset, weight)
        height, width = weight.shape[2:]
        ctx.window = (width, height, *stride[::-1], *pad[::-1], *dilation[::-1])
        ctx.groups = (groups, offset_groups)
        output = x.new_empty(x.size(0), weight.size(0), *offset.shape[2:])
        ctx.buffers = [x.new_empty(0), x.new_empty(0)]
        done = _C.deform_conv_forward(
            x, weight, offset, output, *ctx.buffers, *ctx.window, *ctx.groups, 64
        )
        assert done == 1
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, weight = ctx.saved_tensors
        columns, ones = ctx.buffers
        to_x, to_offset = torch.zeros_like(x), torch.zeros_like(offset)
        done = _C.deform_conv_backward_input(
            x, offset, grad, to_x, to_offset, weight, columns, *ctx.window, *ctx.groups, 64
        )
        assert done == 1
        to_weight = torch.zeros_like(weight)
        done = _C.deform_conv_backward_parameters(
            x, offset, grad, to_weight, columns, ones, *ctx.window, *ctx.groups, 1, 64
        )
        assert done == 1
        return to_x, to_offset, to_weight, *[None] * 5


class ModulatedDeformConv(torch.autograd.Function):
    """Version 2: y sizes before x sizes, one stride, padding and dilation for both."""

    @staticmethod
    def forward(ctx, x, offset, mask, weight, bias, stride, pad, dilation, groups, offset_groups):
        ctx.with_bias = bias is not None
        bias = bias if ctx.with_bias else x.new_empty(1)
        ctx.save_for_backward(x, offset, mask, weight, bias)
        ctx.window = (*weight.shape[2:], stride, stride, pad, pad, dilation, dilation)
        ctx.rest = (groups, offset_groups, ctx.with_bias)
        output = x.new_empty(x.size(0), weight.size(0), *offset.shape[2:])
        ctx.buffers = [x.new_empty(0), x.new_empty(0)]
        ones, columns = ctx.buffers
        _C.modulated_deform_conv_forward(
            x, weight, bias, ones, offset, mask, output, columns, *ctx.window, *ctx.rest
        )
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, mask, weight, bias = ctx.saved_tensors
        ones, columns = ctx.buffers
        to = {name: torch.zeros_like(t) for name, t in zip("xomwb", ctx.saved_tensors, strict=True)}
        _C.modulated_deform_conv_backward(
            x, weight, bias, ones, offset, mask, columns,
            to["x"], to["w"], to["b"], to["o"], to["m"], grad, *ctx.window, *ctx.rest,
        )  # fmt: skip
        to_bias = to["b"] if ctx.with_bias else None
        return to["x"], to["o"], to["m"], to["w"], to_bias, *[None] * 5


class DeformRoIPooling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, rois, offset, scale, size, channels, no_trans, group, samples, std):
        ctx.numbers = (no_trans, scale, channels, group, size, size, samples, std)
        output = input.new_empty(rois.shape[0], channels, size, size)
        count = input.new_empty(rois.shape[0], channels, size, size)
        _C.deform_psroi_pooling_forward(input, rois, offset, output, count, *ctx.numbers)
        ctx.save_for_backward(input, rois, offset, count)
        return output

    @staticmethod
    def backward(ctx, grad):
        input, rois, offset, count = ctx.saved_tensors
        to_input, to_offset = torch.zeros_like(input), torch.zeros_like(offset)
        _C.deform_psroi_pooling_backward(
            grad, input, rois, offset, count, to_input, to_offset, *ctx.numbers
        )
        return to_input, None, to_offset, None, None, None, None, None, None, None
