"""Trained convolutions: results and gradients match the PyTorch layers."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detops import _C
from detops.modeling.backbone import conv as convolutions
from detops.modeling.backbone.conv import conv2d, deconv2d
from detops.modeling.backbone.conv_function import flatten
from detops.modeling.backbone.norm import FrozenBatchNorm2d
from detops.packed import width_to_space

SHAPE = (2, 20, 19, 23)  # enough pixels for the package's own function
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def norm_of(channels):
    norm = FrozenBatchNorm2d(channels)
    for name, buffer in norm.named_buffers():
        buffer.uniform_(0.5, 1.5) if name != "bias" else buffer.normal_()
    return norm


@pytest.fixture
def custom_calls(monkeypatch):
    """Records the calls of the package's own function."""
    calls = []
    apply = convolutions.Conv2dFunction.apply

    class Counted:
        @staticmethod
        def apply(*args):
            calls.append(args)
            return apply(*args)

    monkeypatch.setattr(convolutions, "Conv2dFunction", Counted)
    return calls


def gradients(run, tensors, grad):
    for t in tensors:
        t.grad = None
    output = run()
    output.backward(grad.to(output.dtype))
    return [output.detach(), *(t.grad for t in tensors)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (3, 1), (3, 0), (3, 2)])
def test_conv2d_matches_the_layers(custom_calls, kernel, padding, with_norm, bias, layout):
    torch.manual_seed(0)
    conv = nn.Conv2d(20, 33, kernel, padding=padding, bias=bias).to(memory_format=layout)
    norm = norm_of(33) if with_norm else None
    x = torch.randn(SHAPE).to(memory_format=layout).requires_grad_()
    wide, wide_norm = copy.deepcopy(conv).double(), copy.deepcopy(norm)
    wide_norm = None if norm is None else wide_norm.double()
    wide_x = x.detach().double().requires_grad_()
    size = conv(x).shape
    for relu in (False, True):
        for add in (None, torch.randn(size, requires_grad=True)):
            wide_add = None if add is None else add.detach().double().requires_grad_()

            def expected(wide_add=wide_add, relu=relu):
                y = wide(wide_x) if wide_norm is None else wide_norm(wide(wide_x))
                y = y if wide_add is None else y + wide_add
                return y.relu() if relu else y

            def found(add=add, relu=relu):
                return conv2d(conv, x, norm, relu=relu, add=add)

            grad = torch.randn(size)
            ours = gradients(found, [x, *conv.parameters(), *([] if add is None else [add])], grad)
            others = [] if wide_add is None else [wide_add]
            theirs = gradients(expected, [wide_x, *wide.parameters(), *others], grad)
            for a, b in zip(ours, theirs, strict=True):
                scale = max(1.0, b.abs().max().item())
                torch.testing.assert_close(a.double(), b, rtol=0, atol=2e-5 * scale)
    assert len(custom_calls) == 4


def test_second_derivatives_match_the_layers(custom_calls):
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 17, 3, padding=1)
    x = torch.randn(2, 16, 18, 18, requires_grad=True)

    def penalty(run, x, weight):
        (grad,) = torch.autograd.grad(run(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), [x, weight])

    ours = penalty(lambda x: conv2d(conv, x, relu=True), x, conv.weight)
    theirs = penalty(lambda x: F.relu(conv(x)), x, conv.weight)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * b.abs().max().item())
    assert custom_calls


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_deconv2d_matches_the_layer(custom_calls, bias, layout):
    torch.manual_seed(0)
    deconv = nn.ConvTranspose2d(6, 5, 2, stride=2, bias=bias)
    x = torch.randn(7, 6, 9, 10).to(memory_format=layout).requires_grad_()
    grad = torch.randn(7, 5, 18, 20)
    tensors = [x, *deconv.parameters()]
    ours = gradients(lambda: width_to_space(deconv2d(deconv, x)), tensors, grad)
    theirs = gradients(lambda: deconv(x).relu(), tensors, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(
            a, b, rtol=1e-4, atol=1e-5 * b.abs().max().item(), check_stride=False
        )
    assert len(custom_calls) == 1
    with torch.no_grad():
        assert deconv2d(deconv, x) is None
    assert deconv2d(nn.ConvTranspose2d(6, 5, 4, stride=2), x) is None


@pytest.mark.parametrize("with_norm", [False, True])
@pytest.mark.parametrize("size", [(3, 4), (15, 17), (1, 1)])
def test_pointwise_convolutions_of_few_pixels_match_the_layers(custom_calls, size, with_norm):
    torch.manual_seed(0)
    conv = nn.Conv2d(70, 66, 1, bias=not with_norm)
    norm = norm_of(66) if with_norm else None
    x = torch.randn(2, 70, *size).to(memory_format=torch.channels_last).requires_grad_()

    def layers():
        return (conv(x) if norm is None else norm(conv(x))) + add

    add = torch.randn_like(conv(x)).requires_grad_()
    grad, tensors = torch.randn_like(add), [x, add, *conv.parameters()]
    ours = gradients(lambda: conv2d(conv, x, norm, relu=True, add=add), tensors, grad)
    theirs = gradients(lambda: layers().relu(), tensors, grad)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())
    assert len(custom_calls) == 1
    conv2d(conv, x).add_(1).sum().backward()  # as a pyramid does


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_flatten_matches_pytorch(dtype):
    x = torch.randn(600, 64, 3, 5).to(dtype).to(memory_format=torch.channels_last).requires_grad_()
    flat = flatten(x)
    assert torch.equal(flat, x.flatten(1)) and flat.grad_fn.name() == "FlattenFunctionBackward"
    grad = torch.randn_like(flat)
    flat.add_(1).backward(grad)
    assert torch.equal(x.grad, grad.unflatten(1, x.shape[1:]))
    assert x.grad.is_contiguous(memory_format=torch.channels_last)
    for other in (x[:2], x.contiguous(), x[:0]):
        assert "FlattenFunction" not in flatten(other).grad_fn.name()
        assert torch.equal(flatten(other), other.flatten(1))
    assert torch.equal(torch.func.vmap(lambda t: flatten(t[None])[0])(x), x.flatten(1))
    total = torch.autograd.grad(flatten(x).square().sum(), x, create_graph=True)[0]
    torch.testing.assert_close(torch.autograd.grad(total.sum(), x)[0], torch.full_like(x, 2))


def test_unsupported_convolutions_fall_back_to_pytorch(custom_calls):
    """Covers few pixels, strides, groups, other dtypes, hooks, autocast and transforms."""
    conv, small_shape, large_shape = nn.Conv2d(16, 16, 3, padding=1), (1, 16, 8, 8), (1, 16, 32, 32)
    conv2d(conv, torch.randn(small_shape, requires_grad=True))
    x = torch.randn(large_shape, requires_grad=True)
    conv2d(nn.Conv2d(16, 16, 3, stride=2, padding=1), x)
    conv2d(nn.Conv2d(16, 16, 3, padding=1, groups=4), x)
    conv2d(nn.Conv2d(16, 16, 3, padding=2, dilation=2), x)
    conv2d(nn.Conv2d(16, 16, 3, padding=3), x)
    conv2d(copy.deepcopy(conv).double(), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        conv2d(conv, x)
    with_hook = copy.deepcopy(conv)
    with_hook.register_forward_hook(lambda *_: None)
    conv2d(with_hook, x)
    torch.func.grad(lambda x: conv2d(conv, x).sum())(x.detach())
    torch.func.jvp(lambda x: conv2d(conv, x), (x.detach(),), (x.detach(),))
    assert not custom_calls
    conv2d(conv, x)
    assert len(custom_calls) == 1


def test_conv2d_without_gradients_uses_updated_weights():
    """Training runs the proposal network without gradients, with new weights after each step."""
    torch.manual_seed(0)
    conv = nn.Conv2d(16, 18, 3, padding=1)
    for _ in range(2):
        for size in (32, 5):  # few pixels reuse the weights packed for many
            x = torch.randn(1, 16, size, size)
            with torch.no_grad():
                found = conv2d(conv, x, relu=True)
                torch.testing.assert_close(found, conv(x).relu(), rtol=0, atol=2e-5)
                assert convolutions._FOLDED_CACHE[conv].winograd
        with torch.no_grad():
            conv.weight.add_(0.1)
    conv.double()
    with torch.no_grad():
        conv2d(conv, x.double())
    assert not convolutions._FOLDED_CACHE[conv].winograd
    conv.float().eval()
    with torch.no_grad():
        conv2d(conv, torch.randn(1, 16, 32, 32))
    assert not convolutions._FOLDED_CACHE[conv].winograd


def test_training_steps_reuse_the_same_memory():
    torch.manual_seed(0)
    layers = [nn.Conv2d(32, 32, 3, padding=1) for _ in range(3)]
    arena_sizes = []
    for _ in range(4):
        x = torch.randn(1, 32, 128, 128)
        for layer in layers:
            x = conv2d(layer, x, relu=True)
        x.sum().backward()
        del x
        arena_sizes.append(_C.arena_size()[0])
    assert arena_sizes[0] > 0 and arena_sizes[3] == arena_sizes[1]
    assert _C.use_arena(False) is False
