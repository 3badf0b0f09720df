import math

import pytest
import reference_sparse_pool as reference
import torch
from pool_inputs import LAYOUTS, feature_map
from rotated_inputs import rois_for, with_gradient
from torch.autograd import gradcheck, gradgradcheck

import detops
from detops._C import roi_align_rotated_backward, roi_align_rotated_forward


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 5, 12, 15), (3, 2)), ((1, 3, 7, 5), (1, 1)), ((1, 1, 1, 1), (2, 2)),
     ((3, 2, 1, 20), (3, 4)), ((1, 2, 30, 28), (2, 5))],
)  # fmt: skip
def test_roi_align_rotated_matches_float64_reference(
    isa, device, layout, sampling_ratio, shape, size
):
    x = feature_map(*shape, layout=layout, device=device)
    rois = rois_for(shape[0], 12, 2.0 * max(shape[2:]))
    ours = detops.roi_align_rotated(x, rois.to(device), size, 0.5, sampling_ratio)
    expected = reference.roi_align_rotated(x.cpu(), rois, size, 0.5, sampling_ratio)
    torch.testing.assert_close(ours.cpu().double(), expected, atol=3e-5, rtol=0)
    if min(shape[1:]) > 1:
        assert ours.is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("channels", [37, 64, 200])
def test_angle_zero_matches_roi_align(isa, device, layout, sampling_ratio, channels):
    x = feature_map(2, channels, 25, 31, layout=layout, device=device)
    rois = rois_for(2, 60, 60.0).to(device)
    rois[:, 5] = 0
    half = rois[:, 3:5] / 2
    upright = torch.cat([rois[:, :1], rois[:, 1:3] - half, rois[:, 1:3] + half], 1)
    ours, ours_grad, grad = with_gradient(x, rois, (7, 5), 0.5, sampling_ratio)
    expected = detops.roi_align(x, upright, (7, 5), 0.5, sampling_ratio, aligned=True)
    torch.testing.assert_close(ours, expected, atol=3e-5, rtol=0)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)
    torch.testing.assert_close(ours_grad, expected_grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("turns", [0, 1, 2, 3, -1, 5])
@pytest.mark.parametrize("sampling_ratio", [-1, 2])
def test_quarter_turns_match_roi_align_of_the_rotated_map(device, turns, sampling_ratio):
    side = 24.0
    x = feature_map(1, 3, 24, 24, device=device)
    rois = rois_for(1, 20, side).to(device)
    rois[:, 5] = 90.0 * turns
    ours = detops.roi_align_rotated(x, rois, (4, 3), 1.0, sampling_ratio)
    # Rotating the image clockwise by the counter-clockwise box angle makes the box upright.
    turned = x
    centre = rois[:, 1:3] - side / 2
    for _ in range(turns % 4):
        turned = turned.rot90(-1, (2, 3))
        centre = torch.stack([-centre[:, 1], centre[:, 0]], 1)
    centre, half = centre + side / 2, rois[:, 3:5] / 2
    upright = torch.cat([rois[:, :1], centre - half, centre + half], 1)
    expected = detops.roi_align(turned, upright, (4, 3), 1.0, sampling_ratio, aligned=True)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


# Shape, number of RoIs, range of box sides: they select the path of the CPU kernels.
WAYS = {
    "many RoIs": ((2, 33, 40, 50), 2600, (3, 12)),
    "a band of rows that moves down": ((1, 3, 400, 1300), 60, (10, 90)),
    "one RoI taller than the band": ((1, 2, 700, 900), 4, (500, 690)),
    "far apart": ((1, 40, 90, 200), 3, (5, 20)),
    "many channels, large windows": ((1, 256, 60, 70), 5, (50, 60)),
    "images without a RoI": ((5, 20, 30, 30), 6, (5, 20)),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sampling_ratio", [2, -1])
def test_every_kernel_path_matches_float64(
    device, layout, way, sampling_ratio, two_threads, poison
):
    shape, count, (least, most) = WAYS[way]
    generator = torch.Generator().manual_seed(2)
    x = feature_map(*shape, layout=layout, device=device)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor(shape[:1:-1])
    side = least + torch.rand(count, 2, generator=generator) * (most - least)
    image = torch.randint(shape[0], (count, 1), generator=generator)
    image[image == 2] = 1
    angle = torch.rand(count, 1, generator=generator) * 360
    rois = torch.cat([image, centre, side, angle], 1).to(device)
    assert torch.empty(1000).isnan().all()
    one, two = two_threads(lambda: with_gradient(x, rois, 7, 1.0, sampling_ratio))
    wide = x.detach().double().contiguous().requires_grad_()
    expected, expected_grad, _ = with_gradient(wide, rois, 7, 1.0, sampling_ratio)
    # Rounding grows with the coordinate.
    tolerance = 2e-5 + 2e-7 * max(shape[2:])
    torch.testing.assert_close(one[0].double(), expected, atol=tolerance, rtol=0)
    torch.testing.assert_close(one[1].double(), expected_grad, atol=5 * tolerance, rtol=1e-4)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ratio", [1, 2, 5, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_few_channels_match_a_subset_of_many(isa, layout, ratio, dtype, two_threads):
    """The kernel samples few channels from the map itself and many with a table."""
    shape = (2, 2, 33, 70)
    x = feature_map(*shape, layout=layout).detach().to(dtype).requires_grad_()
    many = x.detach().repeat(1, 6, 1, 1).contiguous(memory_format=layout).requires_grad_()
    rois = rois_for(2, 40, 60.0)
    one, two = two_threads(lambda: with_gradient(x, rois, (3, 40), 1.0, ratio))
    pooled, of_map, grad = one
    assert torch.equal(pooled, two[0]) and torch.equal(of_map, two[1])
    expected = detops.roi_align_rotated(many, rois, (3, 40), 1.0, ratio)
    (expected_grad,) = torch.autograd.grad(expected, many, grad.repeat(1, 6, 1, 1))
    tolerance = {"atol": 2e-5, "rtol": 1e-5 if x.itemsize > 2 else torch.finfo(dtype).eps}
    torch.testing.assert_close(pooled, expected[:, 4:6], **tolerance)
    torch.testing.assert_close(of_map, expected_grad[:, 4:6], **tolerance)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("channels", [1, 40])
def test_zero_weight_ignores_nonfinite_values(isa, device, layout, value, channels):
    # At integer coordinates a sample is one pixel; the last row and column have no neighbour.
    x = torch.arange(35.0).view(1, 1, 5, 7).repeat(1, channels, 1, 1)
    x[..., 2, 3] = x[..., 4, 6] = value
    x = x.contiguous(memory_format=layout).to(device)
    rois = torch.tensor([[0.0, 4.5, 3.5, 7, 5, 0]], device=device)
    pooled = detops.roi_align_rotated(x, rois, (5, 7), 1.0, 1)
    expected = torch.zeros_like(x)
    expected[..., :4, :6] = x[..., 1:, 1:]
    inner = pooled[..., :4, :6]
    torch.testing.assert_close(inner, expected[..., :4, :6], rtol=0, atol=0, equal_nan=True)
    grad = torch.zeros(1, channels, 5, 7, device=device)
    grad[..., 1, 2] = value
    grad = grad.contiguous(memory_format=layout)
    spread = roi_align_rotated_backward(grad, rois, 1.0, 5, 7, *x.shape, 1)
    assert spread.isfinite().logical_not().sum() == channels
    assert not spread[..., 2, 3].isfinite().any()


def test_batches_of_a_run_add_up(isa):
    # Adaptive RoIs of the whole map have so many taps that the kernel pools a few at a time.
    x = feature_map(1, 2, 200, 220)
    rois = rois_for(1, 60, 200.0)
    rois[:, 3:5] += 180
    pooled, grad, of_pooled = with_gradient(x, rois, 3)
    parts = [with_gradient(x, rois[i : i + 1], 3)[0] for i in range(60)]
    assert torch.equal(pooled, torch.cat(parts))
    single = [
        roi_align_rotated_backward(g[None].double(), r[None], 1.0, 3, 3, *x.shape, -1)
        for g, r in zip(of_pooled, rois, strict=True)
    ]
    torch.testing.assert_close(grad.double(), sum(single), atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_backward_is_the_transpose(isa, device, layout):
    x = feature_map(2, 45, 17, 23, layout=layout, device=device, dtype=torch.double)
    rois = rois_for(2, 30, 30.0).to(device)
    for ratio in (-1, 1, 2):
        pooled, of_map, grad = with_gradient(x, rois, (3, 5), 0.8, ratio)
        assert of_map.is_contiguous(memory_format=layout)
        torch.testing.assert_close((pooled * grad).sum(), (x * of_map).sum(), rtol=1e-11, atol=0)
        (narrow,) = torch.autograd.grad(
            detops.roi_align_rotated(x.float(), rois, (3, 5), 0.8, ratio), x, grad.float()
        )
        torch.testing.assert_close(narrow, of_map, atol=3e-5, rtol=0)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 31, 32, 33, 100])
def test_half_precision_is_float32_rounded_once(isa, device, dtype, layout, channels, poison):
    x = feature_map(2, channels, 12, 19, layout=layout, device=device).to(dtype).detach()
    wide = x.float().requires_grad_()
    x.requires_grad_()
    rois = rois_for(2, 20, 30.0).to(device)
    ours, ours_grad, grad = with_gradient(x, rois, (5, 3), 0.5, 2)
    expected = detops.roi_align_rotated(wide, rois, (5, 3), 0.5, 2)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.float())
    assert ours.dtype == dtype
    once = {"atol": 2e-6, "rtol": torch.finfo(dtype).eps / 2}
    torch.testing.assert_close(ours.float(), expected, **once)
    torch.testing.assert_close(ours_grad.float(), expected_grad, **once)


def test_list_and_module_match_op(device):
    x = feature_map(3, 4, 9, 9, device=device)
    rois = rois_for(1, 5, 9.0).to(device)
    rois[:, 0] = torch.tensor([0.0, 0, 2, 2, 2])
    boxes = [rois[:2, 1:], rois[:0, 1:], rois[2:, 1:]]
    expected = detops.roi_align_rotated(x, rois, 2)
    assert torch.equal(detops.roi_align_rotated(x, boxes, 2), expected)
    module = detops.RoIAlignRotated(2, 1.0, -1)
    assert torch.equal(module(x, boxes), expected)
    assert "sampling_ratio=-1" in repr(module)


def test_boxes_of_another_dtype_are_cast_up(device):
    x = feature_map(1, 2, 8, 8, device=device)
    rois = rois_for(1, 5, 8.0).to(device)
    expected = detops.roi_align_rotated(x, rois, 2)
    assert torch.equal(detops.roi_align_rotated(x, rois.double(), 2), expected)
    assert detops.roi_align_rotated(x.double(), rois, 2).dtype == torch.double


@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_rotated_passes_gradcheck(device, layout):
    x = feature_map(2, 2, 5, 6, layout=layout, dtype=torch.double, device=device)
    rois = rois_for(2, 4, 8.0, torch.double).to(device)
    for args in ((2, 0.7, 2), ((3, 1), 1.0, -1)):

        def call(x):
            return detops.roi_align_rotated(x, rois, *args)  # noqa: B023

        assert gradcheck(call, (x,))
        assert gradgradcheck(call, (x,))


def test_vmap_and_func_grad_match_loop():
    x = torch.randn(3, 2, 4, 6, 5)
    rois = torch.stack([rois_for(2, 4, 8.0)] * 3)
    rois[:, :, 1:] += torch.arange(3).view(3, 1, 1)

    def pool(x, rois):
        return detops.roi_align_rotated(x, rois, 2, 1.0, 2)

    for dims in ((0, 0), (0, None), (None, 0)):
        args = [a if d == 0 else a[0] for a, d in zip((x, rois), dims, strict=True)]
        each = [[a[i] if d == 0 else a for a, d in zip(args, dims, strict=True)] for i in range(3)]
        expected = torch.stack([pool(*e) for e in each])
        assert torch.equal(torch.vmap(pool, in_dims=dims)(*args), expected)

    gradient = torch.func.grad(lambda x, rois: pool(x, rois).square().sum())
    expected = torch.stack([gradient(x[i], rois[i]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(gradient)(x, rois), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_run_and_thread_count_give_the_same_bits(isa, two_threads, layout):
    x = feature_map(2, 40, 20, 20, layout=layout)
    rois = rois_for(2, 600)

    def both():
        return with_gradient(x, rois, 7, 1.0, 2)

    first, second = two_threads(both)
    for a, b in zip(first + first, second + both(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_align_rotated_passes_opcheck(device, layout):
    x = feature_map(2, 3, 6, 6, layout=layout, device=device).detach()
    rois = rois_for(2, 3, 6.0).to(device)
    ops = torch.ops.detops
    assert roi_align_rotated_forward is ops.roi_align_rotated_forward
    torch.library.opcheck(ops.roi_align_rotated_forward.default, (x, rois, 0.5, 2, 3, 2))
    grad = torch.randn(3, 3, 2, 3, device=device).contiguous(memory_format=layout)
    args = (grad, rois, 0.5, 2, 3, 2, 3, 6, 6, 2)
    torch.library.opcheck(ops.roi_align_rotated_backward.default, args)


@pytest.mark.slow
def test_compiled_roi_align_rotated_matches_eager():
    def call(x, rois):
        return detops.roi_align_rotated(x, rois, (3, 2), 0.5, 2).square().sum()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for layout in LAYOUTS:
        for size in (8, 11):
            x, rois = feature_map(2, 4, size, size + 1, layout=layout), rois_for(2, size)
            torch.testing.assert_close(compiled(x, rois), call(x, rois))
            (ours,) = torch.autograd.grad(compiled(x, rois), x)
            (expected,) = torch.autograd.grad(call(x, rois), x)
            torch.testing.assert_close(ours, expected)
