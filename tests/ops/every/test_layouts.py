"""One rule decides the layout of outputs and gradients of all RoI ops."""

import pytest
import torch

import detops

BOXES = torch.tensor([[0.0, 1, 1, 9, 7], [1, 0, 2, 5, 6]])
ROTATED = torch.tensor([[0.0, 5, 4, 8, 6, 30], [1, 3, 4, 5, 4, -10]])
CHANNELS_LAST, CONTIGUOUS = torch.channels_last, torch.contiguous_format
OPS = {
    "roi_align": lambda x, d: detops.roi_align(x, BOXES.to(d), 2),
    "multiscale_roi_align": lambda x, d: detops.multiscale_roi_align([x], BOXES.to(d), 2, [1.0]),
    "roi_align_rotated": lambda x, d: detops.roi_align_rotated(x, ROTATED.to(d), 2),
    "roi_pool": lambda x, d: detops.roi_pool(x, BOXES.to(d), 2),
    "ps_roi_align": lambda x, d: detops.ps_roi_align(x, BOXES.to(d), 2),
    "ps_roi_pool": lambda x, d: detops.ps_roi_pool(x, BOXES.to(d), 2),
}
# The expected layout, and how to take the input from a dense tensor of that layout.
INPUTS = {
    "channels_last": (CHANNELS_LAST, lambda x: x),
    "part of channels_last": (CHANNELS_LAST, lambda x: x[:, :, :-1, 1:]),
    "some channels of channels_last": (CHANNELS_LAST, lambda x: x[:, 2:]),
    "contiguous": (CONTIGUOUS, lambda x: x),
    "part of contiguous": (CONTIGUOUS, lambda x: x[:, :, :-1, 1:]),
}


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("op", OPS)
def test_output_and_gradient_keep_the_layout_of_the_input(device, op, name):
    layout, view = INPUTS[name]
    base = torch.rand(2, 12 if "some" not in name else 14, 12, 13, device=device)
    x = view(base.contiguous(memory_format=layout)).detach().requires_grad_()
    output = OPS[op](x, device)
    (grad,) = torch.autograd.grad(output.square().sum(), x)
    dense = view(base).contiguous(memory_format=CONTIGUOUS).requires_grad_()
    expected = OPS[op](dense, device)
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), dense)
    assert output.is_contiguous(memory_format=layout) and grad.is_contiguous(memory_format=layout)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(grad, expected_grad)
