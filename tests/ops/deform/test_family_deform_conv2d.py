"""Deformable convolutions, called as detectors of the maskrcnn-benchmark family do."""

import pytest
import reference_deform_conv2d as reference
import torch
import torchvision
from family_layers import DeformConv, ModulatedDeformConv

from detops import _C


def random(generator, device, *shape):
    return torch.randn(shape, generator=generator).to(device).requires_grad_()


def compare(ours, theirs, tensors):
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)
    grad = torch.randn_like(theirs)
    for one, other in zip(
        torch.autograd.grad(ours, tensors, grad),
        torch.autograd.grad(theirs, tensors, grad),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=1e-4)


# A batch of 67 images, a prime, is not a multiple of the step of 64.
@pytest.mark.parametrize("images", [1, 67])
def test_version_1_matches_torchvision(device, images):
    generator = torch.Generator().manual_seed(0)
    x = random(generator, device, images, 8, 7, 9)
    weight = random(generator, device, 6, 4, 3, 2)
    window = ((2, 1), (1, 0), (1, 2))
    offset = random(generator, device, images, 2 * 2 * 6, 4, 7)
    theirs = torchvision.ops.deform_conv2d(x, offset, weight, None, *window)
    compare(DeformConv.apply(x, offset, weight, *window, 2, 2), theirs, (x, offset, weight))


@pytest.mark.parametrize("with_bias", [True, False])
def test_version_2_matches_torchvision(device, with_bias):
    generator = torch.Generator().manual_seed(0)
    x, weight = random(generator, device, 3, 8, 9, 7), random(generator, device, 6, 4, 3, 2)
    offset = random(generator, device, 3, 24, 5, 4)
    mask = random(generator, device, 3, 12, 5, 4)
    bias = random(generator, device, 6) if with_bias else None
    ours = ModulatedDeformConv.apply(x, offset, mask, weight, bias, 2, 1, 1, 2, 2)
    theirs = torchvision.ops.deform_conv2d(x, offset, weight, bias, (2, 2), (1, 1), (1, 1), mask)
    compare(ours, theirs, [t for t in (x, offset, mask, weight, bias) if t is not None])


@pytest.mark.parametrize("size", [0, 1, -1, "any"])
@pytest.mark.parametrize("version", [1, 2])
def test_sample_at_exactly_minus_one_has_no_gradient(isa, device, version, size):
    """The rule differs from torchvision; the zero offsets at the start of training show it."""
    generator = torch.Generator().manual_seed(0)
    x, weight = random(generator, device, 2, 4, 7, 7), random(generator, device, 6, 4, 3, 3)
    mask = random(generator, device, 2, 9, 7, 7)
    integers = torch.randint(-2, 3, (2, 18, 7, 7), generator=generator).float()
    offset = integers if size == "any" else torch.full_like(integers, size)
    offset = offset.to(device).requires_grad_()
    tensors, masks = [x, offset, weight], {}
    if version == 1:
        ours = DeformConv.apply(x, offset, weight, (1, 1), (1, 1), (1, 1), 1, 1)
    else:
        tensors, masks = [*tensors, mask], {"mask": mask.cpu().double()}
        ours = ModulatedDeformConv.apply(x, offset, mask, weight, None, 1, 1, 1, 1, 1)
    grad = torch.randn(ours.shape, generator=generator).to(device)
    found = torch.autograd.grad(ours, tensors, grad)
    double = [t.detach().cpu().double().requires_grad_() for t in tensors]
    if version == 2:
        masks["mask"] = double[3]
    differs = []
    for edge_gradient in (False, True):
        expected = reference.deform_conv2d(
            *double[:3], padding=(1, 1), **masks, edge_gradient=edge_gradient
        )
        results = torch.autograd.grad(expected, double, grad.cpu().double())
        differs.append(
            any(
                not torch.allclose(one.cpu().double(), other, 1e-4, 1e-4)
                for one, other in zip(found, results, strict=True)
            )
        )
    assert differs == [False, size != 1]


def test_weight_gradients_accumulate_and_outputs_are_resized(device):
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(2, 4, 6, 6), torch.randn(3, 4, 3, 3)
    offset, grad = torch.randn(2, 18, 4, 4), torch.randn(2, 3, 4, 4, generator=generator)
    x, weight, offset, grad = (t.to(device) for t in (x, weight, offset, grad))
    window, empty = (3, 3, 1, 1, 0, 0, 1, 1, 1, 1), x.new_empty(0)

    def parameters(grad_weight, scale):
        _C.deform_conv_backward_parameters(
            x, offset, grad, grad_weight, empty, empty, *window, scale, 1
        )
        return grad_weight

    once = parameters(torch.zeros_like(weight), 1.0)
    twice = parameters(once.clone(), -0.5)
    torch.testing.assert_close(twice, once / 2)
    output = x.new_empty(0)
    _C.deform_conv_forward(x, weight, offset, output, empty, empty, *window, 64)
    assert torch.equal(output, _C.deform_conv2d_forward(x, offset, None, weight, None))
    assert empty.numel() == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 2}, "weight must have a kernel of 3 x 2, got"),
        ({8: 2}, "weight must have 4 / 2 channels, got"),
        ({9: 2}, "offset must have 36 channels, got"),
    ],
)
def test_mismatched_sizes_raise(device, change, message):
    x, weight = torch.zeros(1, 4, 6, 6, device=device), torch.zeros(3, 4, 3, 3, device=device)
    offset, empty = torch.zeros(1, 18, 4, 4, device=device), x.new_empty(0)
    window = [3, 3, 1, 1, 0, 0, 1, 1, 1, 1]
    for i, value in change.items():
        window[i] = value
    with pytest.raises(RuntimeError, match="detops.deform_conv_forward: " + message):
        _C.deform_conv_forward(x, weight, offset, empty, empty, empty, *window, 64)


def test_forward_accepts_fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, weight, offset = (
            torch.zeros(1, 4, 6, 6),
            torch.zeros(3, 4, 3, 3),
            torch.zeros(1, 18, 4, 4),
        )
        output, empty = x.new_empty(1, 3, 4, 4), x.new_empty(0)
        window = (3, 3, 1, 1, 0, 0, 1, 1, 1, 1)
        _C.deform_conv_forward(x, weight, offset, output, empty, empty, *window, 64)
        assert output.shape == (1, 3, 4, 4)
