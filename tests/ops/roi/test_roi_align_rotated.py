import math

import pytest
import reference_sparse_pool as reference
import torch
from pool_inputs import LAYOUTS, feature_map
from rotated_inputs import random_rois, with_gradient

import detops
from detops._C import roi_align_rotated_backward


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 2])
@pytest.mark.parametrize("channels", [37, 64, 200])
def test_angle_zero_matches_roi_align(isa, device, layout, sampling_ratio, channels):
    x = feature_map(2, channels, 25, 31, layout=layout, device=device)
    rois = random_rois(2, 60, 60.0).to(device)
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
    rois = random_rois(1, 20, side).to(device)
    rois[:, 5] = 90.0 * turns
    ours = detops.roi_align_rotated(x, rois, (4, 3), 1.0, sampling_ratio)
    # Rotating the image clockwise by the counter-clockwise box angle makes the box upright.
    rotated_map = x
    centre = rois[:, 1:3] - side / 2
    for _ in range(turns % 4):
        rotated_map = rotated_map.rot90(-1, (2, 3))
        centre = torch.stack([-centre[:, 1], centre[:, 0]], 1)
    centre, half = centre + side / 2, rois[:, 3:5] / 2
    upright = torch.cat([rois[:, :1], centre - half, centre + half], 1)
    expected = detops.roi_align(rotated_map, upright, (4, 3), 1.0, sampling_ratio, aligned=True)
    torch.testing.assert_close(ours, expected, atol=1e-4, rtol=0)


# Shape, number of RoIs, range of box sides: they select the path of the CPU kernels.
VARIANTS = {
    "many RoIs": ((2, 33, 40, 50), 2600, (3, 12)),
    "a band of rows that moves down": ((1, 3, 400, 1300), 60, (10, 90)),
    "one RoI taller than the band": ((1, 2, 700, 900), 4, (500, 690)),
    "far apart": ((1, 40, 90, 200), 3, (5, 20)),
    "many channels, large windows": ((1, 256, 60, 70), 5, (50, 60)),
    "images without a RoI": ((5, 20, 30, 30), 6, (5, 20)),
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("sampling_ratio", [2, -1])
def test_every_kernel_variant_matches_float64(
    device, layout, variant, sampling_ratio, two_threads, poison
):
    shape, count, (min_side, max_side) = VARIANTS[variant]
    generator = torch.Generator().manual_seed(2)
    x = feature_map(*shape, layout=layout, device=device)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor(shape[:1:-1])
    side = min_side + torch.rand(count, 2, generator=generator) * (max_side - min_side)
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
    """The kernel samples few channels directly from the feature map, and many with a table."""
    shape = (2, 2, 33, 70)
    x = feature_map(*shape, layout=layout).detach().to(dtype).requires_grad_()
    many = x.detach().repeat(1, 6, 1, 1).contiguous(memory_format=layout).requires_grad_()
    rois = random_rois(2, 40, 60.0)
    one, two = two_threads(lambda: with_gradient(x, rois, (3, 40), 1.0, ratio))
    pooled, grad_x, grad = one
    assert torch.equal(pooled, two[0]) and torch.equal(grad_x, two[1])
    expected = detops.roi_align_rotated(many, rois, (3, 40), 1.0, ratio)
    (expected_grad,) = torch.autograd.grad(expected, many, grad.repeat(1, 6, 1, 1))
    tolerance = {"atol": 2e-5, "rtol": 1e-5 if x.itemsize > 2 else torch.finfo(dtype).eps}
    torch.testing.assert_close(pooled, expected[:, 4:6], **tolerance)
    torch.testing.assert_close(grad_x, expected_grad[:, 4:6], **tolerance)


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
    grad_x = roi_align_rotated_backward(grad, rois, 1.0, 5, 7, *x.shape, 1)
    assert grad_x.isfinite().logical_not().sum() == channels
    assert not grad_x[..., 2, 3].isfinite().any()


def test_rois_pooled_in_batches_accumulate_gradients(isa):
    # Adaptive RoIs of the whole feature map have so many taps that the kernel pools a few RoIs at a
    # time.
    x = feature_map(1, 2, 200, 220)
    rois = random_rois(1, 60, 200.0)
    rois[:, 3:5] += 180
    pooled, grad, grad_pooled = with_gradient(x, rois, 3)
    parts = [with_gradient(x, rois[i : i + 1], 3)[0] for i in range(60)]
    assert torch.equal(pooled, torch.cat(parts))
    single = [
        roi_align_rotated_backward(g[None].double(), r[None], 1.0, 3, 3, *x.shape, -1)
        for g, r in zip(grad_pooled, rois, strict=True)
    ]
    torch.testing.assert_close(grad.double(), sum(single), atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [(-5.0, 4.0), (5.0, -4.0), (0.0, 4.0), (0.0, 0.0)])
def test_negative_sides_mirror_the_bins(device, size):
    x = feature_map(1, 2, 12, 12, device=device)
    rois = torch.tensor([[0, 6, 6, *size, 30]], device=device)
    assert (detops.roi_align_rotated(x, rois, 3) == 0).all()
    ours = detops.roi_align_rotated(x, rois, 3, 1.0, 2)
    upright = rois.clone()
    upright[:, 3:5] = upright[:, 3:5].abs()
    expected = detops.roi_align_rotated(x, upright, 3, 1.0, 2)
    mirrored = [d for d, s in ((3, size[0]), (2, size[1])) if s < 0]
    torch.testing.assert_close(ours, expected.flip(mirrored), atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("angle", [0.0, 1e-3, 30.0, 90.0, -135.0, 179.9])
@pytest.mark.parametrize("side", [100.0, 700.0])
def test_large_adaptive_boxes_skip_only_samples_outside(device, angle, side):
    x = feature_map(1, 2, 9, 13, device=device)
    rois = torch.tensor([[0, 4.125, 5.25, side, side * 0.7, angle]])
    expected = reference.roi_align_rotated(x.cpu(), rois, (2, 3), 1.0, -1)
    ours = detops.roi_align_rotated(x.double(), rois.double().to(device), (2, 3), 1.0, -1)
    torch.testing.assert_close(ours.cpu(), expected, atol=1e-12, rtol=0)
    narrow = detops.roi_align_rotated(x, rois.to(device), (2, 3), 1.0, -1)
    torch.testing.assert_close(narrow.cpu().double(), expected, atol=1e-5, rtol=0)


def test_backward_rejects_gradients_of_another_size():
    grad, boxes = torch.zeros(1, 2, 4, 4), torch.zeros(3, 6)
    message = r"grad must be \[3, 2, 4, 4\], got \[1, 2, 4, 4\]"
    with pytest.raises(RuntimeError, match=f"detops.roi_align_rotated_backward: {message}"):
        roi_align_rotated_backward(grad, boxes, 1.0, 4, 4, 1, 2, 8, 8, 2)
    message = r"the input's size must be .*got \[1, 2, 0, 8\]"
    with pytest.raises(RuntimeError, match=f"detops.roi_align_rotated_backward: {message}"):
        roi_align_rotated_backward(boxes.view(3, 2, 3, 1), boxes, 1.0, 3, 1, 1, 2, 0, 8, 2)
