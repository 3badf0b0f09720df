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
        ctx.options = (logits.shape[1], gamma, alpha)
        return _C.sigmoid_focalloss_forward(logits, targets, *ctx.options)

    @staticmethod
    def backward(ctx, grad):
        logits, targets = ctx.saved_tensors
        grad = grad.contiguous()
        return _C.sigmoid_focalloss_backward(logits, targets, grad, *ctx.options), None, None, None


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
        status = _C.deform_conv_forward(
            x, weight, offset, output, *ctx.buffers, *ctx.window, *ctx.groups, 64
        )
        assert status == 1
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, weight = ctx.saved_tensors
        columns, ones = ctx.buffers
        grad_x, grad_offset = torch.zeros_like(x), torch.zeros_like(offset)
        status = _C.deform_conv_backward_input(
            x, offset, grad, grad_x, grad_offset, weight, columns, *ctx.window, *ctx.groups, 64
        )
        assert status == 1
        grad_weight = torch.zeros_like(weight)
        status = _C.deform_conv_backward_parameters(
            x, offset, grad, grad_weight, columns, ones, *ctx.window, *ctx.groups, 1, 64
        )
        assert status == 1
        return grad_x, grad_offset, grad_weight, *[None] * 5


class ModulatedDeformConv(torch.autograd.Function):
    """Version 2: y sizes before x sizes, one stride, padding and dilation for both."""

    @staticmethod
    def forward(ctx, x, offset, mask, weight, bias, stride, pad, dilation, groups, offset_groups):
        ctx.with_bias = bias is not None
        bias = bias if ctx.with_bias else x.new_empty(1)
        ctx.save_for_backward(x, offset, mask, weight, bias)
        ctx.window = (*weight.shape[2:], stride, stride, pad, pad, dilation, dilation)
        ctx.options = (groups, offset_groups, ctx.with_bias)
        output = x.new_empty(x.size(0), weight.size(0), *offset.shape[2:])
        ctx.buffers = [x.new_empty(0), x.new_empty(0)]
        ones, columns = ctx.buffers
        _C.modulated_deform_conv_forward(
            x, weight, bias, ones, offset, mask, output, columns, *ctx.window, *ctx.options
        )
        return output

    @staticmethod
    def backward(ctx, grad):
        x, offset, mask, weight, bias = ctx.saved_tensors
        ones, columns = ctx.buffers
        grads = {
            name: torch.zeros_like(t) for name, t in zip("xomwb", ctx.saved_tensors, strict=True)
        }
        _C.modulated_deform_conv_backward(
            x, weight, bias, ones, offset, mask, columns,
            grads["x"], grads["w"], grads["b"], grads["o"], grads["m"], grad,
            *ctx.window, *ctx.options,
        )  # fmt: skip
        grad_bias = grads["b"] if ctx.with_bias else None
        return grads["x"], grads["o"], grads["m"], grads["w"], grad_bias, *[None] * 5


class DeformRoIPooling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, rois, offset, scale, size, channels, no_trans, group, samples, std):
        ctx.options = (no_trans, scale, channels, group, size, size, samples, std)
        output = input.new_empty(rois.shape[0], channels, size, size)
        count = input.new_empty(rois.shape[0], channels, size, size)
        _C.deform_psroi_pooling_forward(input, rois, offset, output, count, *ctx.options)
        ctx.save_for_backward(input, rois, offset, count)
        return output

    @staticmethod
    def backward(ctx, grad):
        input, rois, offset, count = ctx.saved_tensors
        grad_input, grad_offset = torch.zeros_like(input), torch.zeros_like(offset)
        _C.deform_psroi_pooling_backward(
            grad, input, rois, offset, count, grad_input, grad_offset, *ctx.options
        )
        return grad_input, None, grad_offset, None, None, None, None, None, None, None
