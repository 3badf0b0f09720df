"""Calls of detops._C by position, as a maskrcnn-benchmark detector calls its own `_C`.

The signatures are that project's; the code is not.
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
    @staticmethod
    def forward(ctx, input, offset, weight, stride=1, padding=0, dilation=1, groups=1, parts=1):
        ctx.save_for_backward(input, offset, weight)
        # Width before height, twice each; how many images the column buffer would have to hold.
        twice = [n for n in (stride, padding, dilation) for _ in range(2)]
        ctx.numbers = (weight.size(3), weight.size(2), *twice, groups, parts)
        ctx.buffers = [input.new_empty(0), input.new_empty(0)]
        span = [dilation * (k - 1) + 1 for k in weight.shape[2:]]
        size = [
            (n + 2 * padding - s) // stride + 1 for n, s in zip(input.shape[2:], span, strict=True)
        ]
        output = input.new_empty(input.size(0), weight.size(0), *size)
        step = min(64, input.size(0))
        _C.deform_conv_forward(input, weight, offset, output, *ctx.buffers, *ctx.numbers, step)
        return output

    @staticmethod
    def backward(ctx, grad):
        input, offset, weight = ctx.saved_tensors
        columns, ones = ctx.buffers
        step = min(64, input.size(0))
        to_input, to_offset, to_weight = map(torch.zeros_like, (input, offset, weight))
        _C.deform_conv_backward_input(
            input, offset, grad, to_input, to_offset, weight, columns, *ctx.numbers, step
        )
        _C.deform_conv_backward_parameters(
            input, offset, grad, to_weight, columns, ones, *ctx.numbers, 1, step
        )
        return to_input, to_offset, to_weight, None, None, None, None, None


class ModulatedDeformConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, offset, mask, weight, bias, stride=1, padding=0, dilation=1, parts=1):
        ctx.with_bias = bias is not None
        bias = input.new_empty(1) if bias is None else bias
        ctx.save_for_backward(input, offset, mask, weight, bias)
        twice = [n for n in (stride, padding, dilation) for _ in range(2)]
        ctx.numbers = (*weight.shape[2:], *twice, 1, parts, ctx.with_bias)
        ctx.buffers = [input.new_empty(0), input.new_empty(0)]
        output = input.new_empty(input.size(0), weight.size(0), *offset.shape[2:])
        ones, columns = ctx.buffers
        _C.modulated_deform_conv_forward(
            input, weight, bias, ones, offset, mask, output, columns, *ctx.numbers
        )
        return output

    @staticmethod
    def backward(ctx, grad):
        input, offset, mask, weight, bias = ctx.saved_tensors
        ones, columns = ctx.buffers
        grads = [torch.zeros_like(t) for t in (input, weight, bias, offset, mask)]
        _C.modulated_deform_conv_backward(
            input, weight, bias, ones, offset, mask, columns, *grads, grad, *ctx.numbers
        )
        to_input, to_weight, to_bias, to_offset, to_mask = grads
        to_bias = to_bias if ctx.with_bias else None
        return to_input, to_offset, to_mask, to_weight, to_bias, None, None, None, None


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
