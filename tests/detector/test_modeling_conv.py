import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from detops.modeling.backbone.conv import _FOLDED_CACHE, conv2d
from detops.modeling.backbone.fpn import FPN, add_upsampled
from detops.modeling.backbone.norm import FrozenBatchNorm2d
from detops.modeling.backbone.resnet import BasicBlock, Bottleneck


def frozen_norm(channels):
    norm = FrozenBatchNorm2d(channels)
    for buffer in norm.buffers():
        buffer.copy_(torch.rand(channels) + 0.5)
    return norm


def layers(dtype=torch.float32, bias=True, norm=frozen_norm, **kwargs):
    conv = nn.Conv2d(8, 12, 3, padding=1, bias=bias, **kwargs)
    pair = nn.ModuleList([conv] if norm is None else [conv, norm(12)])
    conv, norm = [*pair.to(dtype=dtype, memory_format=torch.channels_last), None][:2]
    return conv, norm


def image(dtype=torch.float32, size=(2, 8, 9, 7)):
    return torch.randn(size, dtype=dtype).contiguous(memory_format=torch.channels_last)


def separate_layers(conv, x, norm=None, relu=False, add=None):
    x = conv(x)
    x = x if norm is None else norm(x)
    x = x if add is None else x + add
    return F.relu(x) if relu else x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("norm", [frozen_norm, None, lambda c: nn.GroupNorm(3, c)])
@pytest.mark.parametrize("kwargs", [{}, {"bias": False}, {"stride": 2, "groups": 4, "dilation": 2}])
def test_conv2d_equals_the_separate_layers(dtype, relu, added, norm, kwargs):
    conv, norm = layers(dtype, norm=norm, **kwargs)
    x = image(dtype)
    with torch.no_grad():
        add = torch.randn_like(conv(x)) if added else None
        expected = separate_layers(conv, x, norm, relu, add)
        before = None if add is None else add.clone()
        tolerance = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
        for _ in range(2):  # the second call uses folded weights
            found = conv2d(conv, x, norm, relu=relu, add=add)
            torch.testing.assert_close(found, expected, **tolerance)
            assert found.is_contiguous(memory_format=torch.channels_last)
        assert add is None or torch.equal(add, before)
        torch.testing.assert_close(
            conv2d(conv, x, norm, relu=relu, add=add, overwrite=True), expected, **tolerance
        )


@pytest.mark.parametrize("norm", [frozen_norm, None])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("size", [(2, 8, 9, 7), (1, 8, 3, 3)])
def test_conv2d_gradients_equal_the_separate_layers(norm, bias, size):
    conv, norm = layers(torch.float64, bias, norm)
    add = torch.randn(size[0], 12, *size[2:], dtype=torch.float64)
    gradients = []
    for function in (conv2d, separate_layers):
        x, other = image(torch.float64, size).requires_grad_(), add.clone().requires_grad_()
        torch.manual_seed(1)
        x.data.normal_()
        conv.zero_grad()
        function(conv, x, norm, relu=True, add=other).square().sum().backward()
        gradients.append([x.grad, other.grad, *(p.grad.clone() for p in conv.parameters())])
    torch.testing.assert_close(*gradients)


def test_frozen_layers_keep_folded_weights():
    conv, norm = layers()
    conv.requires_grad_(False)
    conv2d(conv, image(), norm)
    assert conv in _FOLDED_CACHE


def test_conv2d_accepts_an_empty_batch():
    conv, norm = layers()
    x = image(size=(0, 8, 9, 7))
    with torch.no_grad():
        assert conv2d(conv, x, norm, relu=True).shape == (0, 12, 9, 7)


def weight_changes(conv, norm):
    other_conv, other_norm = layers()
    yield lambda: conv.weight.mul_(2)
    yield lambda: norm.running_var.add_(1)
    yield lambda: conv.load_state_dict(other_conv.state_dict())
    yield lambda: norm.load_state_dict(other_norm.state_dict())
    yield lambda: setattr(conv.weight, "data", torch.randn_like(conv.weight))
    yield lambda: setattr(conv, "bias", nn.Parameter(torch.randn(12)))
    yield lambda: setattr(conv, "weight", nn.Parameter(torch.randn_like(conv.weight)))
    yield lambda: conv.double() and norm.double()
    yield lambda: conv.float() and norm.float()
    yield lambda: conv.to(memory_format=torch.contiguous_format)


@torch.no_grad()
def test_folded_weights_follow_weight_changes():
    conv, norm = layers()
    changes = 0
    for change in weight_changes(conv, norm):
        conv2d(conv, image(conv.weight.dtype), norm)
        change()
        x = image(conv.weight.dtype)
        torch.testing.assert_close(conv2d(conv, x, norm), separate_layers(conv, x, norm))
        changes += 1
    assert changes == 10


def test_training_drops_folded_weights_and_refolds_them():
    conv, norm = layers()
    optimizer = torch.optim.SGD(conv.parameters(), 1e-3)
    x = image()
    for _ in range(2):
        with torch.no_grad():
            torch.testing.assert_close(conv2d(conv, x, norm), separate_layers(conv, x, norm))
        assert conv in _FOLDED_CACHE
        conv2d(conv, x, norm).sum().backward()
        assert conv not in _FOLDED_CACHE  # halves the memory in training
        optimizer.step()


def test_inference_tensors_are_used_without_folding():
    with torch.inference_mode():
        conv, norm = layers()
        for _ in range(2):
            x = image()
            torch.testing.assert_close(conv2d(conv, x, norm), separate_layers(conv, x, norm))
            conv.weight.mul_(2)
        assert conv not in _FOLDED_CACHE


def test_weights_folded_in_inference_mode_work_outside_it():
    conv, norm = layers()
    x = image()
    with torch.inference_mode():
        conv2d(conv, x, norm)
    conv.requires_grad_(False)
    torch.testing.assert_close(conv2d(conv, x, norm), separate_layers(conv, x, norm))


@torch.no_grad()
def test_copies_and_pickles_exclude_folded_weights():
    conv, norm = layers()
    pair = nn.ModuleList([conv, norm])
    names = set(pair.state_dict())
    x = image()
    conv2d(conv, x, norm)
    duplicate = copy.deepcopy(pair)
    duplicate[0].weight.mul_(2)
    torch.testing.assert_close(
        conv2d(*duplicate[:1], x, duplicate[1]), separate_layers(duplicate[0], x, duplicate[1])
    )
    file = io.BytesIO()
    torch.save(pair, file)
    assert set(pair.state_dict()) == names and len(file.getvalue()) < 20_000


@torch.no_grad()
def test_conv2d_calls_forward_hooks():
    conv, norm = layers()
    x = image()
    calls = []
    expected = conv2d(conv, x, norm)
    for module in (conv, norm):
        module.register_forward_hook(lambda *_: calls.append(1))
    torch.testing.assert_close(conv2d(conv, x, norm), expected)
    assert len(calls) == 2


@torch.no_grad()
def test_unsupported_layers_are_called_unchanged():
    x = image()
    convs = [nn.Conv2d(8, 12, 3, padding="same"), nn.Conv2d(8, 12, 3, padding_mode="reflect")]
    for conv in [*convs, nn.Sequential(nn.Conv2d(8, 12, 1), nn.GroupNorm(3, 12), nn.ReLU())]:
        torch.testing.assert_close(conv2d(conv, x, relu=True), F.relu(conv(x)))


def test_conv2d_follows_autocast():
    conv, norm = layers()
    x = image()
    with torch.no_grad():
        expected = separate_layers(conv, x, norm, True, torch.ones(2, 12, 9, 7))
        with torch.autocast("cpu", torch.bfloat16):
            for add in (torch.ones(2, 12, 9, 7), torch.ones(2, 12, 9, 7, dtype=torch.bfloat16)):
                found = conv2d(conv, x, norm, relu=True, add=add)
                torch.testing.assert_close(found.float(), expected, rtol=3e-2, atol=5e-2)
            assert found.dtype == torch.bfloat16
            assert conv2d(conv, x.double(), norm.double()).dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert conv2d(conv, x, norm.float()).dtype == torch.bfloat16


def test_conv2d_works_without_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    conv, norm = layers()
    x, add = image(), torch.randn(2, 12, 9, 7)
    with torch.no_grad():
        expected = separate_layers(conv, x, norm, True, add)
        torch.testing.assert_close(conv2d(conv, x, norm, relu=True, add=add), expected)
        assert _FOLDED_CACHE[conv].packed is None


@pytest.mark.parametrize("gradient", [True, False])
def test_blocks_leave_their_input_unchanged(gradient):
    for block in (
        BasicBlock(8, 8, 1, frozen_norm),
        Bottleneck(8, 8, 1, frozen_norm, width=4, groups=1, stride_in_1x1=True),
        Bottleneck(8, 16, 2, frozen_norm, width=4, groups=1, stride_in_1x1=False),
    ):
        x = image()
        before = x.clone()
        with torch.set_grad_enabled(gradient):
            block(x)
        assert torch.equal(x, before)


@pytest.mark.parametrize("size", [(6, 10), (5, 9), (6, 9)])
def test_add_enlarged_equals_interpolate_and_add(size):
    finer = image(size=(2, 8, *size))
    coarser = image(size=(2, 8, 3, 5))
    expected = finer + F.interpolate(coarser, size=size)
    assert torch.equal(add_upsampled(finer, coarser), expected) and torch.equal(finer, expected)


@pytest.mark.parametrize("size", [(6, 10), (5, 9)])
def test_add_enlarged_passes_gradient_checks(size):
    torch.manual_seed(0)
    finer = torch.randn(2, 4, *size, dtype=torch.float64, requires_grad=True)
    coarser = torch.randn(2, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: add_upsampled(a.clone(), b), (finer, coarser))
    squares = lambda a, b: add_upsampled(a.clone(), b).square()  # noqa: E731
    assert torch.autograd.gradgradcheck(squares, (finer, coarser))


@pytest.mark.parametrize("norm", [None, lambda c: nn.GroupNorm(2, c)])
@pytest.mark.parametrize("relu", [True, False])
def test_fpn_passes_gradient_checks(norm, relu):
    torch.manual_seed(0)
    fpn = FPN([4, 6, 8], 4, norm=norm, relu=relu).double()
    maps = [torch.randn(1, c, s, s, dtype=torch.float64) for c, s in ((4, 9), (6, 5), (8, 3))]
    maps[0] = torch.randn(1, 4, 10, 10, dtype=torch.float64)
    for m in maps:
        m.requires_grad_()
    assert torch.autograd.gradcheck(lambda *m: tuple(fpn([*m])), maps, fast_mode=True)
