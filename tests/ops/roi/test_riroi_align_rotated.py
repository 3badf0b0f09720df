import math

import pytest
import reference_oriented as reference
import torch
from torch.autograd import gradcheck, gradgradcheck

import detops
from detops.bench.riroi_align_rotated import plain_riroi_align_rotated

FORMATS = (torch.contiguous_format, torch.channels_last)


def feature_map(*size, dtype=torch.float32, device="cpu", layout=FORMATS[0]):
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    return x.contiguous(memory_format=layout).requires_grad_()


def rois_for(images, count, size=30.0, device="cpu", dtype=torch.float32):
    """Returns RoIs at any angle that reach beyond a map of `size`; some are below a pixel."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(images, (count, 1), generator=generator)
    centre = (torch.rand(count, 2, generator=generator) * 1.4 - 0.2) * size
    side = torch.rand(count, 2, generator=generator) * size * 0.6
    side[:2] = 0.5
    angle = torch.rand(count, 1, generator=generator) * 800 - 400
    return torch.cat([index, centre, side, angle], 1).to(device, dtype)


def with_gradient(x, *args):
    pooled = detops.riroi_align_rotated(x, *args)
    grad = torch.randn(pooled.shape, generator=torch.Generator().manual_seed(3)).to(pooled)
    return [pooled.detach(), torch.autograd.grad(pooled, x, grad)[0]]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("clockwise", [False, True])
@pytest.mark.parametrize("ratio", [-1, 2])
@pytest.mark.parametrize(
    ("size", "orientations"),
    [
        ((2, 8, 9, 11), 8),
        ((1, 12, 7, 6), 4),
        ((1, 5, 8, 8), 1),
        ((2, 15, 6, 5), 5),
        ((1, 2, 1, 1), 2),
    ],
)
def test_riroi_align_rotated_matches_reference(
    isa, device, size, orientations, ratio, clockwise, layout
):
    rois = rois_for(size[0], 7, 2.0 * max(size[2:]))
    how = ((3, 2), 0.5, ratio, orientations, clockwise)
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        x = feature_map(*size, dtype=dtype, device=device, layout=layout)
        pooled = detops.riroi_align_rotated(x, rois.to(device, dtype), *how)
        expected = reference.riroi_align_rotated(x.cpu(), rois, *how)
        assert pooled.dtype == dtype
        if min(size[1:]) > 1:
            assert pooled.is_contiguous(memory_format=layout)
        torch.testing.assert_close(pooled.double().cpu(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize(("channels", "orientations"), [(8, 8), (120, 8), (48, 16), (21, 3)])
def test_gradients_match_float64(isa, device, layout, channels, orientations):
    rois = rois_for(2, 40, device=device)
    how = ((3, 4), 0.5, 2, orientations)
    single = feature_map(2, channels, 17, 19, device=device, layout=layout)
    double = single.detach().double().cpu().contiguous().requires_grad_()
    wide_rois = rois.double().cpu()
    for a, b in zip(
        with_gradient(single, rois, *how), with_gradient(double, wide_rois, *how), strict=True
    ):
        assert a.is_contiguous(memory_format=layout)
        torch.testing.assert_close(a.double().cpu(), b, rtol=1e-4, atol=2e-4)


def test_whole_steps_of_the_angle_permute_the_orientations(isa, device):
    """The square box pools to the same values at each angle, except for the channel order."""
    x = feature_map(1, 16, 12, 12, device=device).detach()
    rois = torch.tensor([[0.0, 6, 6, 4, 4, 90.0 * i] for i in range(-4, 5)], device=device)
    pooled = detops.riroi_align_rotated(x, rois, 1, 1.0, 2, 4)[:, :, 0, 0].unflatten(1, (4, 4))
    for i in range(9):
        expected = pooled[0].roll(i, 1)
        torch.testing.assert_close(pooled[i], expected, rtol=0, atol=1e-5)


def test_benchmark_baseline_matches_riroi_align_rotated():
    x, rois = feature_map(1, 16, 25, 21), rois_for(1, 30, 80.0)
    rois[:, 3:5] += 4
    found = detops.riroi_align_rotated(x, rois, 7, 0.25, 2)
    expected = plain_riroi_align_rotated(x, rois)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
def test_half_precision_rounds_once(isa, device, dtype, layout):
    x = feature_map(2, 24, 13, 14, dtype=dtype, device=device, layout=layout)
    y = x.detach().float().requires_grad_()
    rois = rois_for(2, 20, device=device)
    ours, single = (detops.riroi_align_rotated(t, rois, 3, 0.5, 2) for t in (x, y))
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    (to_x,) = torch.autograd.grad(ours, x, grad)
    (to_y,) = torch.autograd.grad(single, y, grad.float())
    assert to_x.dtype == dtype and torch.equal(to_x, to_y.to(dtype))


def test_riroi_align_rotated_passes_gradcheck(device):
    x = feature_map(2, 4, 5, 6, dtype=torch.float64, device=device)
    rois = rois_for(2, 3, 10.0, device, torch.float64)

    def pool(x):
        return detops.riroi_align_rotated(x, rois, 2, 0.5, 2, 4)

    assert gradcheck(pool, (x,)) and gradgradcheck(pool, (x,))


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("channels", [8, 80])
def test_any_number_of_threads_gives_the_same_bits(two_threads, channels, layout):
    x, rois = feature_map(2, channels, 40, 50, layout=layout), rois_for(2, 300, 90.0)
    one, two = two_threads(lambda: with_gradient(x, rois, 7, 0.5, 2))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("layout", FORMATS)
def test_zero_weight_ignores_nonfinite_values(isa, device, layout):
    x = torch.ones(1, 8, 6, 6, device=device).contiguous(memory_format=layout)
    x[:, 3] = math.inf
    rois = torch.tensor([[0.0, 2, 2, 1, 1, 90]], device=device)
    pooled = detops.riroi_align_rotated(x, rois, 1, 1.0, 1, 8)[0, :, 0, 0]
    assert pooled.tolist() == [1, 1, 1, 1, 1, math.inf, 1, 1]
    grad = torch.ones(1, 8, 1, 1, device=device)
    grad[:, 5] = math.nan
    to_x = torch.ops.detops.riroi_align_rotated_backward(
        grad, rois, 1.0, 1, 1, 1, 8, 6, 6, 1, 8, False
    )
    assert to_x[:, 3].isnan().any() and to_x[:, [0, 1, 2, 4, 5, 6, 7]].isfinite().all()


@pytest.mark.parametrize("column", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("ratio", [-1, 2])
def test_nonfinite_boxes_pool_to_zero(isa, device, column, ratio):
    x = feature_map(1, 8, 6, 6, device=device)
    for value in (math.nan, math.inf, -math.inf):
        rois = torch.tensor([[0.0, 3, 3, 3, 3, 30]], device=device)
        rois[:, column] = value
        if column in (3, 4) and value < 0:  # a side is at least a pixel
            continue
        pooled, to_x = with_gradient(x, rois, 2, 1.0, ratio)
        assert not pooled.any() and not to_x.any()
    rois = torch.tensor([[0.0, 3, 3, 3, 3, 30]], device=device)
    rois[:, column] = 1e30
    assert all(t.isfinite().all() for t in with_gradient(x, rois, 2, 1.0, ratio))


def test_lists_strides_and_layouts_match_op(device):
    x, rois = feature_map(2, 24, 9, 10, device=device).detach(), rois_for(2, 9, device=device)
    rois = rois[rois[:, 0].argsort(stable=True)]
    expected = detops.riroi_align_rotated(x, rois, (2, 3), 0.5, 2)
    lists = [rois[rois[:, 0] == i, 1:] for i in range(2)]
    assert torch.equal(detops.riroi_align_rotated(x, lists, (2, 3), 0.5, 2), expected)
    part = torch.cat([x, x], 1)[:, ::2]
    found = detops.riroi_align_rotated(part, torch.cat([rois, rois], 1)[:, :6], 2, 0.5, 2)
    assert torch.equal(found, detops.riroi_align_rotated(part.clone(), rois, 2, 0.5, 2))
    last = x.contiguous(memory_format=FORMATS[1])
    found = detops.riroi_align_rotated(last, rois, (2, 3), 0.5, 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    grad = torch.ones((), device=device).expand_as(expected)  # the gradient of a sum
    size = (0.5, 2, 3, *x.shape, 2, 8, False)
    torch.testing.assert_close(
        torch.ops.detops.riroi_align_rotated_backward(grad, rois, *size),
        torch.ops.detops.riroi_align_rotated_backward(grad.contiguous(), rois, *size),
    )


@pytest.mark.parametrize(("images", "channels", "count"), [(2, 0, 3), (2, 8, 0), (0, 8, 0)])
def test_empty_input_gives_empty_output_and_zero_gradient(device, poison, images, channels, count):
    x = torch.zeros(images, channels, 5, 6, device=device, requires_grad=True)
    pooled, to_x = with_gradient(x, rois_for(2, 3, device=device)[:count], 2)
    assert pooled.shape == (count, channels, 2, 2) and not to_x.any()


@pytest.mark.slow
def test_op_passes_opcheck_and_matches_module_and_vmap():
    x, rois = feature_map(2, 8, 5, 6).detach(), rois_for(2, 4, 10.0)
    module = detops.RiRoIAlignRotated((2, 3), 0.5, 2, 4)
    expected = detops.riroi_align_rotated(x, rois, (2, 3), 0.5, 2, 4)
    assert torch.equal(module(x, rois), expected)
    assert repr(module) == (
        "RiRoIAlignRotated(output_size=(2, 3), spatial_scale=0.5, sampling_ratio=2, "
        "num_orientations=4, clockwise=False)"
    )
    args = (0.5, 2, 3, 2, 4, False)
    for op in ("riroi_align_rotated", "riroi_align_rotated_forward"):
        torch.library.opcheck(getattr(torch.ops.detops, op).default, (x, rois, *args))
    args = (expected, rois, *args[:3], *x.shape, *args[3:])
    torch.library.opcheck(torch.ops.detops.riroi_align_rotated_backward.default, args)
    both = torch.vmap(module, in_dims=(0, None))(torch.stack([x, 2 * x]), rois)
    torch.testing.assert_close(both, torch.stack([expected, 2 * expected]))


def test_riroi_align_rotated_rejects_bad_input():
    x, rois = feature_map(2, 12, 5, 6), rois_for(2, 4)
    with pytest.raises(
        RuntimeError,
        match=r"riroi_align_rotated: input must have a multiple of num_orientations \(8\) "
        "channels, got 12",
    ):
        detops.riroi_align_rotated(x, rois, 2)
    with pytest.raises(RuntimeError, match="num_orientations must be at least 1, got 0"):
        detops.riroi_align_rotated(x, rois, 2, num_orientations=0)
    with pytest.raises(RuntimeError, match="sampling_ratio must be at most 64, got 65"):
        detops.riroi_align_rotated(x, rois, 2, 1.0, 65, 4)
    with pytest.raises(RuntimeError, match=r"boxes must be \[K, 6\], got \[4, 5\]"):
        detops.riroi_align_rotated(x, rois[:, :5], 2, num_orientations=4)


@pytest.mark.parametrize("index", [-1.0, 2.0, 1e30, math.nan])
def test_batch_index_out_of_range_raises_or_pools_zero(device, values_are_checked, index):
    x, rois = feature_map(2, 12, 5, 6, device=device), rois_for(2, 4, device=device)
    rois[1, 0] = index
    size = (1.0, 2, 2, *x.shape, 2, 4, False)
    grad = torch.ones(4, 12, 2, 2, device=device)
    backward = torch.ops.detops.riroi_align_rotated_backward
    if values_are_checked:
        with pytest.raises(RuntimeError, match=r"riroi_align_rotated: boxes\[1, 0\] is a batch"):
            detops.riroi_align_rotated(x, rois, 2, num_orientations=4)
        with pytest.raises(RuntimeError, match=r"riroi_align_rotated_backward: boxes\[1, 0\] is"):
            backward(grad, rois, *size)
        return
    assert not detops.riroi_align_rotated(x, rois, 2, num_orientations=4)[1].any()
    rest = [0, 2, 3]
    assert torch.equal(backward(grad, rois, *size), backward(grad[rest], rois[rest], *size))
