import pytest
import torch
from reference_sparse_pool import DeformPSRoIPooling as Reference
from test_deform_psroi_pooling import arguments, gradients, moved

import detops
from detops import _C


class FamilyPooling(torch.autograd.Function):
    """Calls the op as detectors of the maskrcnn-benchmark family do."""

    @staticmethod
    def forward(ctx, data, rois, trans, no_trans, scale, channels, group, size, part, samples, std):
        ctx.options = no_trans, scale, channels, group, size, part, samples, std
        output = data.new_empty(len(rois), channels, size, size)
        counted = data.new_empty(len(rois), channels, size, size)
        _C.deform_psroi_pooling_forward(data, rois, trans, output, counted, *ctx.options)
        ctx.save_for_backward(data, rois, trans, counted)
        return output

    @staticmethod
    def backward(ctx, grad):
        data, rois, trans, counted = ctx.saved_tensors
        of_data, of_trans = torch.zeros_like(data), torch.zeros_like(trans)
        _C.deform_psroi_pooling_backward(
            grad, data, rois, trans, counted, of_data, of_trans, *ctx.options
        )
        return of_data, None, of_trans, *[None] * 8


@pytest.mark.parametrize("kind", ["one group", "classes", "groups", "many channels"])
@pytest.mark.parametrize("no_trans", [False, True])
def test_family_functions_match_op(device, kind, no_trans):
    x, rois, offset, (size, scale, channels, *rest) = arguments(kind)
    x, rois, offset = moved(device, x, rois, offset)
    group, part, samples, std = rest
    given = x.new_empty(0).requires_grad_() if no_trans else offset
    family = FamilyPooling.apply(
        x, rois, given, no_trans, scale, channels, group, size[0], part, samples, std
    )
    ours = detops.deform_psroi_pooling(
        x, rois, offset, size, scale, channels, *rest, no_trans=no_trans
    )
    assert torch.equal(family, ours)
    grad, family_x, family_offset = gradients(family, (x, given))
    inputs = (x,) if no_trans else (x, offset)
    of_x, *of_offset = torch.autograd.grad(ours, inputs, grad)
    assert torch.equal(family_x, of_x)
    assert no_trans or torch.equal(family_offset, of_offset[0])


def test_family_functions_add_to_gradients_and_resize_buffers(device):
    x, rois, offset, (size, scale, channels, *rest) = arguments("classes")
    x, rois, offset = (t.detach() for t in moved(device, x, rois, offset))
    options = (0, scale, channels, rest[0], size[0], *rest[1:])
    output, counted = x.new_empty(0), x.new_empty(0)
    _C.deform_psroi_pooling_forward(x, rois, offset, output, counted, *options)
    assert output.shape == counted.shape == (len(rois), channels, *size)
    _, expected = Reference(
        x.cpu(), rois.cpu(), offset.cpu(), size, scale, channels, *rest
    ).forward()
    assert torch.equal(counted.cpu().double(), expected)
    of_x, of_offset = torch.zeros_like(x), torch.zeros_like(offset)
    args = (torch.ones_like(output), x, rois, offset, counted)
    _C.deform_psroi_pooling_backward(*args, of_x, of_offset, *options)
    twice_x, twice_offset = of_x.clone(), of_offset.clone()
    _C.deform_psroi_pooling_backward(*args, twice_x, twice_offset, *options)
    assert torch.equal(twice_x, 2 * of_x) and torch.equal(twice_offset, 2 * of_offset)
    with pytest.raises(RuntimeError, match="offset must be"):
        _C.deform_psroi_pooling_backward(*args[:3], offset[:, :1], counted, of_x, of_x, *options)


def test_family_functions_accept_meta_tensors():
    x, rois, offset, (size, scale, channels, *rest) = arguments("classes")
    x, rois, offset = (t.detach().to("meta") for t in (x, rois, offset))
    output, counted = x.new_empty(0), x.new_empty(0)
    options = (0, scale, channels, rest[0], size[0], *rest[1:])
    _C.deform_psroi_pooling_forward(x, rois, offset, output, counted, *options)
    assert output.shape == counted.shape == (len(rois), channels, *size)
