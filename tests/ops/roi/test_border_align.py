import math

import pytest
import reference_max_samples as reference
import torch
from torch.autograd import gradcheck

import detops
from detops.bench.border_align import plain_border_align

POOL = 5


def inputs(channels=5, count=7, dtype=torch.float32, device="cpu", images=2):
    """Returns a feature map and boxes that reach beyond it; one box per image is a point."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 4 * channels, 9, 11, generator=generator)
    low = torch.rand(images, count, 2, generator=generator) * 12 - 3
    side = torch.rand(images, count, 2, generator=generator) * 9
    side[:, :1] = 0
    boxes = torch.cat([low, low + side], 2)
    return x.to(device, dtype).requires_grad_(), boxes.to(device, dtype)


def with_gradient(x, boxes):
    output = detops.border_align(x, boxes, POOL)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, x, grad)]


@pytest.mark.parametrize("pool_size", [1, 5, 30])
@pytest.mark.parametrize(("channels", "count"), [(1, 1), (5, 7), (17, 33), (70, 2)])
def test_border_align_matches_reference(isa, device, channels, count, pool_size):
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        x, boxes = inputs(channels, count, dtype, device)
        found = detops.border_align(x, boxes, pool_size)
        expected, expected_argmax = reference.border_align(x.detach().cpu(), boxes.cpu(), pool_size)
        assert found.dtype == dtype and found.is_contiguous()
        torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=tolerance)
        if dtype == torch.float64:
            _, argmax = torch.ops.detops.border_align_forward(x, boxes, pool_size)
            same = argmax.cpu() == expected_argmax
            same[:, :, :1] = True  # all samples of a point box coincide
            assert same.all()


@pytest.mark.parametrize("channels", [1, 5, 130])
def test_gradients_match_float64(isa, device, channels):
    single = with_gradient(*inputs(channels, device=device))
    x, boxes = (t.detach().double().cpu() for t in inputs(channels))
    for a, b in zip(single, with_gradient(x.requires_grad_(), boxes), strict=True):
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=1e-4)


def test_border_align_passes_gradcheck(device):
    x, boxes = inputs(2, 3, torch.float64, device)
    assert gradcheck(lambda x: detops.border_align(x, boxes, POOL), (x,))
    output = detops.border_align(x, boxes, POOL)
    (grad,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="border_align_backward is not implemented"):
        grad.sum().backward()


def test_benchmark_baseline_matches_border_align():
    x, boxes = inputs()
    boxes = boxes.clamp(1, 8)
    found = detops.border_align(x, boxes, 10)
    torch.testing.assert_close(found, plain_border_align(x, boxes))


def test_border_align_accepts_any_layout(device):
    x, boxes = (t.detach() for t in inputs(6, device=device))
    expected = detops.border_align(x, boxes, POOL)
    last = x.contiguous(memory_format=torch.channels_last)
    assert torch.equal(detops.border_align(last, boxes, POOL), expected)
    strided = torch.stack([boxes, boxes], -1)[..., 0]
    assert torch.equal(detops.border_align(x, strided, POOL), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(isa, device, dtype):
    x, boxes = inputs(37, dtype=dtype, device=device)
    y = x.detach().float().requires_grad_()
    ours, single = detops.border_align(x, boxes, POOL), detops.border_align(y, boxes.float(), POOL)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    (grad_x,) = torch.autograd.grad(ours, x, grad)
    (grad_y,) = torch.autograd.grad(single, y, grad.float())
    assert grad_x.dtype == dtype and torch.equal(grad_x, grad_y.to(dtype))


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    args = inputs(100, 200)
    one, two = two_threads(lambda: with_gradient(*args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_first_of_equal_samples_gets_the_gradient(isa, device):
    x = torch.zeros(1, 4, 6, 6, device=device)
    x[..., 1, 1] = x[..., 4, 4] = x[..., 1, 4] = x[..., 4, 1] = 5
    x.requires_grad_()
    box = torch.tensor([[[1.0, 1, 4, 4]]], device=device)
    found = detops.border_align(x, box, 3)
    assert (found == 5).all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    expected = torch.zeros_like(grad)
    expected[0, :2, 1, 1] = expected[0, 2:, 4, 4] = 1
    assert torch.equal(grad, expected)


def test_samples_beyond_the_map_are_zero_without_gradient(isa, device):
    x = torch.full((1, 4, 4, 4), -1.0, device=device, requires_grad=True)
    box = torch.tensor([[[1.0, 1, 9, 9]]], device=device)
    found = detops.border_align(x, box, 8)
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert not found.any() and not grad.any()


def test_maximum_skips_nan_and_zero_weight_pixels(isa, device):
    x = torch.zeros(1, 8, 4, 4, device=device)
    box = torch.tensor([[[1.0, 1, 2, 2]]], device=device)
    x[..., 1, 1] = math.nan
    assert not detops.border_align(x, box, 1).any()
    x[..., 1:3, 1:3] = -math.inf
    assert (detops.border_align(x, box, 1) == -math.inf).all()
    x[..., 1:3, 1:3] = math.nan
    assert detops.border_align(x, box, 1).isnan().all()
    x[..., 1:3, 1:3], x[..., 3, :] = 1, math.inf  # next to the read pixels, with a weight of 0
    assert (detops.border_align(x, box, 1) == 1).all()
    for coordinate in (math.nan, math.inf, -math.inf, 1e30):
        found = detops.border_align(x, torch.full((1, 3, 4), coordinate, device=device), 10)
        assert not found.any()


@pytest.mark.parametrize(("channels", "count"), [(0, 3), (3, 0)])
def test_empty_input_gives_empty_output_and_zero_gradient(device, poison, channels, count):
    found = with_gradient(*inputs(channels, count, device=device))
    assert found[0].shape == (2, channels, count, 4) and not found[1].any()


def test_backward_ignores_invalid_argmax(device):
    _, boxes = inputs(device=device)
    grad = torch.ones(2, 5, 7, 4, device=device)
    for number in (-(2**31), -1, POOL + 1, 2**31 - 1):
        argmax = torch.full(grad.shape, number, dtype=torch.int32, device=device)
        assert not torch.ops.detops.border_align_backward(grad, boxes, argmax, POOL, 9, 11).any()


@pytest.mark.slow
def test_op_passes_opcheck_and_matches_module_and_vmap():
    x, boxes = (t.detach() for t in inputs())
    module = detops.BorderAlign(POOL)
    expected = detops.border_align(x, boxes, POOL)
    assert torch.equal(module(x, boxes), expected) and repr(module) == "BorderAlign(pool_size=5)"
    torch.library.opcheck(torch.ops.detops.border_align.default, (x, boxes, POOL))
    torch.library.opcheck(torch.ops.detops.border_align_forward.default, (x, boxes, POOL))
    _, argmax = torch.ops.detops.border_align_forward(x, boxes, POOL)
    args = (expected, boxes, argmax, POOL, 9, 11)
    torch.library.opcheck(torch.ops.detops.border_align_backward.default, args)
    batched = torch.vmap(module, in_dims=(0, None))(torch.stack([x, 2 * x]), boxes)
    assert torch.equal(batched, torch.stack([expected, 2 * expected]))


def test_border_align_rejects_bad_input():
    x, boxes = inputs()
    with pytest.raises(RuntimeError, match="input must have a multiple of 4 channels, got 19"):
        detops.border_align(x[:, :19], boxes)
    with pytest.raises(
        RuntimeError, match=r"detops.border_align: boxes must be \[2, K, 4\], got \[7, 4\]"
    ):
        detops.border_align(x, boxes[0])
    for size in (0, 4097):
        with pytest.raises(RuntimeError, match=f"pool_size must be in .1, 4096., got {size}"):
            detops.border_align(x, boxes, size)
