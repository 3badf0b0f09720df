import pytest
import torch
from reference_sparse_pool import DeformPSRoIPooling as Reference
from test_deform_psroi_pooling import arguments, gradients, to_device

import detops
from detops import _C


class FamilyPooling(torch.autograd.Function):
    """Calls the op as detectors of the maskrcnn-benchmark family do."""

    @staticmethod
    def forward(ctx, data, rois, trans, no_trans, scale, channels, group, size, part, samples, std):
        ctx.options = no_trans, scale, channels, group, size, part, samples, std
        output = data.new_empty(len(rois), channels, size, size)
        sample_count = data.new_empty(len(rois), channels, size, size)
        _C.deform_psroi_pooling_forward(data, rois, trans, output, sample_count, *ctx.options)
        ctx.save_for_backward(data, rois, trans, sample_count)
        return output

    @staticmethod
    def backward(ctx, grad):
        data, rois, trans, sample_count = ctx.saved_tensors
        grad_data, grad_trans = torch.zeros_like(data), torch.zeros_like(trans)
        _C.deform_psroi_pooling_backward(
            grad, data, rois, trans, sample_count, grad_data, grad_trans, *ctx.options
        )
        return grad_data, None, grad_trans, *[None] * 8


@pytest.mark.parametrize("kind", ["one group", "classes", "groups", "many channels"])
@pytest.mark.parametrize("no_trans", [False, True])
def test_family_functions_match_op(device, kind, no_trans):
    x, rois, offset, (size, scale, channels, *rest) = arguments(kind)
    x, rois, offset = to_device(device, x, rois, offset)
    group, part, samples, std = rest
    offset_or_empty = x.new_empty(0).requires_grad_() if no_trans else offset
    family = FamilyPooling.apply(
        x, rois, offset_or_empty, no_trans, scale, channels, group, size[0], part, samples, std
    )
    ours = detops.deform_psroi_pooling(
        x, rois, offset, size, scale, channels, *rest, no_trans=no_trans
    )
    assert torch.equal(family, ours)
    grad, family_x, family_offset = gradients(family, (x, offset_or_empty))
    inputs = (x,) if no_trans else (x, offset)
    grad_x, *grad_offset = torch.autograd.grad(ours, inputs, grad)
    assert torch.equal(family_x, grad_x)
    assert no_trans or torch.equal(family_offset, grad_offset[0])


def test_family_functions_accumulate_gradients_and_resize_buffers(device):
    x, rois, offset, (size, scale, channels, *rest) = arguments("classes")
    x, rois, offset = (t.detach() for t in to_device(device, x, rois, offset))
    options = (0, scale, channels, rest[0], size[0], *rest[1:])
    output, sample_count = x.new_empty(0), x.new_empty(0)
    _C.deform_psroi_pooling_forward(x, rois, offset, output, sample_count, *options)
    assert output.shape == sample_count.shape == (len(rois), channels, *size)
    _, expected = Reference(
        x.cpu(), rois.cpu(), offset.cpu(), size, scale, channels, *rest
    ).forward()
    assert torch.equal(sample_count.cpu().double(), expected)
    grad_x, grad_offset = torch.zeros_like(x), torch.zeros_like(offset)
    args = (torch.ones_like(output), x, rois, offset, sample_count)
    _C.deform_psroi_pooling_backward(*args, grad_x, grad_offset, *options)
    twice_x, twice_offset = grad_x.clone(), grad_offset.clone()
    _C.deform_psroi_pooling_backward(*args, twice_x, twice_offset, *options)
    assert torch.equal(twice_x, 2 * grad_x) and torch.equal(twice_offset, 2 * grad_offset)
    with pytest.raises(RuntimeError, match="offset must be"):
        _C.deform_psroi_pooling_backward(
            *args[:3], offset[:, :1], sample_count, grad_x, grad_x, *options
        )


def test_family_functions_accept_meta_tensors():
    x, rois, offset, (size, scale, channels, *rest) = arguments("classes")
    x, rois, offset = (t.detach().to("meta") for t in (x, rois, offset))
    output, sample_count = x.new_empty(0), x.new_empty(0)
    options = (0, scale, channels, rest[0], size[0], *rest[1:])
    _C.deform_psroi_pooling_forward(x, rois, offset, output, sample_count, *options)
    assert output.shape == sample_count.shape == (len(rois), channels, *size)
