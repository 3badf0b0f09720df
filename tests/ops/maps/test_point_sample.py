import math

import pytest
import reference_maps as reference
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

import detops
from detops.bench.point_sample import plain_point_sample

SIZES = ((9, 13), (1, 1), (1, 7), (6, 1), (2, 2), (40, 51))


def inputs(channels=5, size=(9, 13), count=53, images=2, dtype=torch.float32, device="cpu"):
    """Returns feature maps and points. Some points lie outside, on pixels and on the border."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, *size, generator=generator)
    points = torch.rand(images, count, 2, generator=generator) * 1.4 - 0.2
    height, width = size
    special = torch.tensor(
        [[0.0, 0], [1, 1], [0.5 / width, 0.5 / height], [1 - 0.5 / width, 0.5 / height], [-3, 0.5]]
    )
    points[:, : min(count, 5)] = special[:count]
    return x.to(device, dtype).requires_grad_(), points.to(device, dtype).requires_grad_()


def with_gradients(call, x, points):
    output = call(x, points)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, (x, points), grad)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("channels", "count"), [(1, 1), (1, 53), (5, 16), (33, 70), (70, 3)])
def test_point_sample_matches_the_reference(isa, device, size, channels, count):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        x, points = inputs(channels, size, count, dtype=dtype, device=device)
        found = with_gradients(detops.point_sample, x, points)
        wide = [t.detach().double().cpu().requires_grad_() for t in (x, points)]
        output = F.grid_sample(wide[0], 2 * wide[1][:, None] - 1, align_corners=False)[:, :, 0]
        torch.testing.assert_close(
            reference.point_sample(x.detach().cpu(), points.detach().cpu()), output.detach()
        )
        grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        expected = [output.detach(), *torch.autograd.grad(output, wide, grad.to(dtype).double())]
        # On a pixel the slope has two values, and rounding chooses one of them.
        pixel = expected[2].new_tensor([size[1], size[0]]) * wide[1].detach() - 0.5
        smooth = ((pixel - pixel.round()).abs() > 1e-4).all(-1, keepdim=True)
        found[2], expected[2] = found[2].cpu() * smooth, expected[2] * smooth
        for a, b in zip(found, expected, strict=True):
            scale = float(b.abs().amax().clamp(min=1))
            torch.testing.assert_close(
                a.double().cpu(), b, rtol=tolerance, atol=10 * tolerance * scale
            )


def test_benchmark_baseline_matches_point_sample():
    x, points = inputs()
    torch.testing.assert_close(detops.point_sample(x, points), plain_point_sample(x, points))


def test_point_outside_the_map_is_zero_despite_nan(isa, device):
    x = torch.full((1, 2, 4, 5), math.nan, device=device)
    x[:, :, 1:3, 1:4] = 1
    # Outside the feature map, at NaN, at infinity, far away, and inside the feature map.
    coordinates = [
        [-0.2, 0.5],
        [0.5, 1.2],
        [math.nan, 0.5],
        [0.5, math.inf],
        [-1e30, 0.5],
        [0.5, 0.5],
    ]
    points = torch.tensor([coordinates], device=device).requires_grad_()
    output = detops.point_sample(x, points)
    assert output[0, 0].tolist() == [0, 0, 0, 0, 0, 1]
    (slope,) = torch.autograd.grad(output.sum(), points)
    assert slope[0, :5].abs().max() == 0
    # Left of the first pixel: a NaN that the point does not reach has no effect.
    one = torch.tensor([[[[2.0, math.nan], [4.0, math.nan]]]], device=device)
    edge = detops.point_sample(one, torch.tensor([[[0.125, 0.5]]], device=device))
    assert edge.item() == 2.25


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 37])
def test_half_precision_rounds_once(isa, device, dtype, channels):
    x, points = inputs(channels, dtype=dtype, device=device)
    wide = [t.detach().float().requires_grad_() for t in (x, points)]
    ours, single = detops.point_sample(x, points), detops.point_sample(*wide)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    ours = torch.autograd.grad(ours, (x, points), grad)
    for a, b in zip(ours, torch.autograd.grad(single, wide, grad.float()), strict=True):
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))


def test_layouts_and_mixed_dtypes_give_the_same_results(device):
    x, points = inputs(6, device=device)
    expected = with_gradients(detops.point_sample, x, points)
    channels_last = x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    strided = points.detach().mT.contiguous().mT.requires_grad_()
    wide = points.detach().double().requires_grad_()
    for a, b in ((channels_last, points), (x, strided), (x, wide)):
        for one, other in zip(with_gradients(detops.point_sample, a, b), expected, strict=True):
            torch.testing.assert_close(one, other.to(one.dtype), rtol=0, atol=0)


def test_gradient_alone_equals_gradient_of_both(device):
    x, points = inputs(device=device)
    batched = torch.autograd.grad(detops.point_sample(x, points).square().sum(), (x, points))
    for i, (a, b) in enumerate(((x, points.detach()), (x.detach(), points))):
        alone = torch.autograd.grad(detops.point_sample(a, b).square().sum(), (a, b)[i])
        assert torch.equal(alone[0], batched[i])


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    x, points = inputs(300, (40, 51), 200, images=3)
    one, two = two_threads(lambda: with_gradients(detops.point_sample, x, points))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("shape", [(0, 3, 5), (2, 0, 5), (2, 3, 0)])
def test_empty_arguments_give_zero_gradients(device, poison, shape):
    images, channels, count = shape
    x = torch.randn(images, channels, 4, 4, device=device, requires_grad=True)
    points = torch.rand(images, count, 2, device=device, requires_grad=True)
    found = with_gradients(detops.point_sample, x, points)
    assert found[0].shape == shape
    assert found[1].abs().sum() == 0 and found[2].abs().sum() == 0


def test_first_derivative_passes_gradcheck_and_second_raises(device):
    x, points = inputs(2, (3, 4), 4, dtype=torch.float64, device=device)
    points = (torch.rand(2, 4, 2, dtype=torch.float64, device=device) * 1.2 - 0.1).requires_grad_()
    assert gradcheck(detops.point_sample, (x, points))
    (slope,) = torch.autograd.grad(detops.point_sample(x, points).sum(), points, create_graph=True)
    with pytest.raises(RuntimeError, match="point_sample_backward is not implemented"):
        slope.sum().backward()


@pytest.mark.slow
def test_op_passes_opcheck_and_supports_vmap():
    x, points = (t.detach() for t in inputs())
    torch.library.opcheck(torch.ops.detops.point_sample.default, (x, points))
    torch.library.opcheck(torch.ops.detops.point_sample_forward.default, (x, points))
    grad = torch.randn(2, 5, 53)
    torch.library.opcheck(
        torch.ops.detops.point_sample_backward.default, (grad, x, points, True, False)
    )
    batched = torch.vmap(detops.point_sample)(torch.stack([x, 2 * x]), torch.stack([points] * 2))
    expected = detops.point_sample(x, points)
    assert torch.equal(batched, torch.stack([expected, 2 * expected]))
    one = torch.vmap(detops.point_sample, in_dims=(None, 0))(x, torch.stack([points, 1 - points]))
    assert torch.equal(one[1], detops.point_sample(x, 1 - points))


def test_errors_name_the_bad_argument():
    x, points = torch.zeros(2, 3, 4, 4), torch.zeros(2, 5, 2)
    with pytest.raises(RuntimeError, match=r"detops.point_sample: points must be \[2, P, 2\]"):
        detops.point_sample(x, points[:1])
    with pytest.raises(RuntimeError, match="detops.point_sample: points must be"):
        detops.point_sample(x, points.long())
    with pytest.raises(RuntimeError, match=r"input must be \[N, C, H >= 1, W >= 1\]"):
        detops.point_sample(x[:, :, :0], points)
