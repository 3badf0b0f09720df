import math
from functools import cache

import pytest
import reference_oriented as reference
import torch
from torch.autograd import gradcheck, gradgradcheck

import detops
from detops.bench.rotated_feature_align import SCALE, plain_rotated_feature_align

FORMATS = (torch.contiguous_format, torch.channels_last)
# Few channels are sampled directly from the feature map, many with tables.
SIZES = [(1, 1, 1, 1), (2, 3, 9, 11), (1, 40, 7, 5), (1, 2, 1, 13), (2, 33, 13, 2), (1, 17, 12, 14)]


def inputs(*size, dtype=torch.float32, device="cpu", layout=FORMATS[0]):
    """Returns a feature map, and boxes at four times its scale that reach beyond it."""
    generator = torch.Generator().manual_seed(0)
    n, _, h, w = size
    x = torch.randn(size, generator=generator).to(device, dtype)
    centre = (torch.rand(n, h, w, 2, generator=generator) * 1.4 - 0.2) * torch.tensor([w, h])
    side = torch.rand(n, h, w, 2, generator=generator) * 6
    angle = torch.rand(n, h, w, 1, generator=generator) * 800 - 400
    boxes = torch.cat([4 * centre, 4 * side, angle], 3).to(device)
    return x.contiguous(memory_format=layout).requires_grad_(), boxes.to(
        torch.promote_types(dtype, torch.float32)
    )


def with_gradient(x, boxes, points, scale=0.25):
    refined = detops.rotated_feature_align(x, boxes, scale, points)
    grad = torch.randn(refined.shape, generator=torch.Generator().manual_seed(1)).to(refined)
    return [refined.detach(), torch.autograd.grad(refined, x, grad)[0]]


@cache
def expected_output(size, dtype, points):
    x, boxes = inputs(*size, dtype=dtype)
    return reference.rotated_feature_align(x, boxes, 0.25, points)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("points", [1, 5])
@pytest.mark.parametrize("size", SIZES)
def test_rotated_feature_align_matches_the_reference(isa, device, size, points, layout):
    for dtype, tolerance in ((torch.float32, 3e-5), (torch.float64, 1e-11)):
        x, boxes = inputs(*size, dtype=dtype, device=device, layout=layout)
        refined = detops.rotated_feature_align(x, boxes, 0.25, points)
        expected = expected_output(size, dtype, points)
        assert refined.dtype == dtype and refined.is_contiguous(memory_format=layout)
        torch.testing.assert_close(refined.double().cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("points", [1, 5])
@pytest.mark.parametrize("size", SIZES)
def test_gradient_is_the_transpose_of_the_op(isa, device, size, points, layout):
    """The op is linear, so the reference of a unit feature map is the derivative along it."""
    x, boxes = inputs(*size, dtype=torch.float64, device=device, layout=layout)
    _, grad_x = with_gradient(x, boxes, points)
    single, _ = inputs(*size, device=device, layout=layout)
    _, grad_single = with_gradient(single, boxes.float(), points)
    assert grad_x.is_contiguous(memory_format=layout)
    torch.testing.assert_close(grad_single.double(), grad_x, rtol=1e-4, atol=1e-4)
    shape = (1, 1, *size[2:])
    unit = torch.eye(size[2] * size[3], dtype=torch.float64).view(-1, *size[2:])
    grad = torch.randn(size, generator=torch.Generator().manual_seed(1)).double()
    for pixel in {0, len(unit) // 2, len(unit) - 1}:
        refined = reference.rotated_feature_align(
            unit[pixel].view(shape), boxes[:1].cpu(), 0.25, points
        )
        expected = (refined * grad[:1]).sum((0, 2, 3))
        torch.testing.assert_close(
            grad_x[0].flatten(1)[:, pixel].cpu(), expected, rtol=0, atol=1e-9
        )


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_few_channels_equal_the_same_channels_of_many(isa, layout, dtype, two_threads):
    few, boxes = inputs(2, 4, 33, 140, dtype=dtype, layout=layout)
    many = few.detach().repeat(1, 8, 1, 1).contiguous(memory_format=layout).requires_grad_()
    one, two = two_threads(lambda: with_gradient(few, boxes, 5))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    refined = detops.rotated_feature_align(many, boxes, 0.25, 5)
    grad = torch.randn(few.shape, generator=torch.Generator().manual_seed(1)).to(few)
    (grad_many,) = torch.autograd.grad(refined, many, grad.repeat(1, 8, 1, 1))
    # Sums have another order; in 16 bits they may round to the next number.
    tolerance = {"rtol": torch.finfo(dtype).eps, "atol": 5e-5 if few.itemsize < 8 else 1e-12}
    torch.testing.assert_close(refined[:, 8:12], one[0], **tolerance)
    torch.testing.assert_close(grad_many[:, 8:12], one[1], **tolerance)


@pytest.mark.parametrize("points", [1, 5])
@pytest.mark.parametrize("channels", [3, 40])
def test_benchmark_baseline_matches_rotated_feature_align(points, channels):
    x, boxes = inputs(2, channels, 20, 24)
    boxes[..., :4] *= 0.25 / SCALE
    found = detops.rotated_feature_align(x, boxes, points=points)
    expected = plain_rotated_feature_align(x, boxes, points)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [5, 37])
def test_half_precision_rounds_once(isa, device, dtype, channels):
    x, boxes = inputs(2, channels, 9, 11, dtype=dtype, device=device)
    y = x.detach().float().requires_grad_()
    ours, single = (detops.rotated_feature_align(t, boxes, 0.25, 5) for t in (x, y))
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    (grad_x,) = torch.autograd.grad(ours, x, grad)
    (grad_y,) = torch.autograd.grad(single, y, grad.float())
    assert grad_x.dtype == dtype and torch.equal(grad_x, grad_y.to(dtype))


def test_derivatives_pass_gradcheck(device):
    x, boxes = inputs(1, 2, 3, 4, dtype=torch.float64, device=device)
    for points in (1, 5):
        assert gradcheck(lambda x, p=points: detops.rotated_feature_align(x, boxes, 0.25, p), (x,))
    assert gradgradcheck(lambda x: detops.rotated_feature_align(x, boxes, 0.25, 5), (x,))
    boxes.requires_grad_()
    refined = detops.rotated_feature_align(x, boxes, 0.25, 5)
    assert torch.autograd.grad(refined.sum(), boxes, allow_unused=True) == (None,)


def test_strided_arguments_give_the_same_results(device):
    x, boxes = inputs(2, 6, 8, 10, device=device)
    x = x.detach()
    for view in (x[:, ::2], x.flip(1), x.transpose(2, 3).contiguous().transpose(2, 3)):
        found = with_gradient(view.detach().requires_grad_(), boxes, 5)
        expected = with_gradient(view.clone(memory_format=FORMATS[0]).requires_grad_(), boxes, 5)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    strided = torch.stack([boxes, boxes], -1)[..., 0]
    expected = detops.rotated_feature_align(x, boxes, 0.25, 5)
    assert torch.equal(detops.rotated_feature_align(x, strided, 0.25, 5), expected)


@pytest.mark.parametrize("channels", [2, 100])
def test_any_number_of_threads_gives_the_same_bits(two_threads, channels):
    x, boxes = inputs(1, channels, 50, 60)
    one, two = two_threads(lambda: with_gradient(x, boxes, 5))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("channels", [1, 40])
def test_zero_weights_ignore_nonfinite_values(isa, device, layout, value, channels):
    x = torch.ones(1, channels, 5, 6, device=device)
    x[..., 2, 3] = value
    x = x.contiguous(memory_format=layout)
    rows, cols = torch.meshgrid(torch.arange(5), torch.arange(6), indexing="ij")
    centred_boxes = torch.zeros(1, 5, 6, 5, device=device)
    centred_boxes[0, ..., 0], centred_boxes[0, ..., 1] = cols.to(device), rows.to(device)
    found = detops.rotated_feature_align(x, centred_boxes, 1.0)
    torch.testing.assert_close(found, 2 * x, equal_nan=True)
    grad_x = torch.ops.detops.rotated_feature_align_backward(x, centred_boxes, 1.0, 1)
    torch.testing.assert_close(grad_x, 2 * x, equal_nan=True)


@pytest.mark.parametrize("channels", [1, 40])
def test_nonfinite_or_distant_boxes_contribute_zero(isa, device, channels):
    x, boxes = inputs(1, channels, 6, 7, device=device)
    for value in (math.nan, math.inf, -math.inf, 1e30, -1e30):
        for column in (0, 1):
            changed_boxes = boxes.clone()
            changed_boxes[..., column] = value
            refined, grad_x = with_gradient(x, changed_boxes, 5)
            assert torch.equal(refined, x) and grad_x.isfinite().all()
        for column in (2, 3, 4):
            changed_boxes = boxes.clone()
            changed_boxes[..., column] = value
            refined, grad_x = with_gradient(x, changed_boxes, 5)
            if abs(value) != 1e30 or column != 4:  # only the centre remains
                for a, b in zip((refined, grad_x), with_gradient(x, boxes, 1), strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
            assert refined.isfinite().all() and grad_x.isfinite().all()


@pytest.mark.parametrize("size", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)])
def test_empty_input_gives_empty_results(device, poison, size):
    x, boxes = (
        torch.zeros(size, device=device, requires_grad=True),
        torch.zeros(size[0], *size[2:], 5, device=device),
    )
    refined, grad_x = with_gradient(x, boxes, 5)
    assert refined.shape == grad_x.shape == size


@pytest.mark.slow
def test_op_passes_opcheck_and_supports_vmap():
    x, boxes = (t.detach() for t in inputs(2, 3, 5, 6))
    expected = detops.rotated_feature_align(x, boxes, 0.25, 5)
    for op in ("", "_forward", "_backward"):
        function = getattr(torch.ops.detops, f"rotated_feature_align{op}").default
        torch.library.opcheck(function, (x, boxes, 0.25, 5))
    batched = torch.stack([x, 2 * x])

    def refine(x):
        return detops.rotated_feature_align(x, boxes, 0.25, 5)

    assert torch.equal(torch.vmap(refine)(batched), torch.stack([expected, 2 * expected]))
    gradient = torch.func.grad(lambda x: refine(x).sin().sum())
    torch.testing.assert_close(torch.vmap(gradient)(batched)[1], gradient(2 * x))


def test_errors_name_the_bad_argument():
    x, boxes = inputs(2, 3, 5, 6)
    for points in (0, 2, 4, 6, -1):
        with pytest.raises(
            RuntimeError, match=f"rotated_feature_align: points must be 1 or 5, got {points}"
        ):
            detops.rotated_feature_align(x, boxes, 0.25, points)
    with pytest.raises(RuntimeError, match=r"boxes must be \[2, 5, 6, 5\], got \[2, 6, 5, 5\]"):
        detops.rotated_feature_align(x, boxes.transpose(1, 2))
    with pytest.raises(RuntimeError, match="spatial_scale must be"):
        detops.rotated_feature_align(x, boxes, 0.0)
