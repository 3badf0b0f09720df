import math

import pytest
import reference
import torch
from pool_inputs import LAYOUTS, feature_map
from torchvision.ops import roi_align as torchvision_roi_align

import detops
from detops._C import roi_align_backward, roi_align_forward


def random_rois(images, count, size=40.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(images, (count, 1), generator=generator).to(dtype)
    # The boxes reach beyond the feature map on all sides.
    boxes = reference.random_boxes(count, 2 * size, generator, dtype) - size / 2
    return torch.cat([index, boxes], dim=1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("sampling_ratio", [-1, 0, 1, 2, 3])
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(
    ("shape", "size"),
    [((2, 37, 25, 31), (7, 5)), ((1, 3, 7, 5), (1, 1)), ((2, 64, 20, 21), (14, 14)),
     ((1, 1, 1, 1), (2, 2)), ((3, 70, 1, 40), (3, 4)),
     ((1, 12, 90, 7), (300, 2)), ((1, 4, 6, 600), (3, 8))],
)  # fmt: skip
def test_roi_align_matches_torchvision(isa, device, layout, sampling_ratio, aligned, shape, size):
    x = feature_map(*shape, layout=layout, device=device)
    rois = random_rois(shape[0], 40, max(shape[2:])).to(device)
    rois[:, 1:] *= 2
    args = (rois, size, 0.5, sampling_ratio, aligned)
    ours, theirs = detops.roi_align(x, *args), torchvision_roi_align(x, *args)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)
    if min(shape[1:]) > 1:
        assert ours.is_contiguous(memory_format=layout)
    grad = torch.randn_like(theirs)
    (ours_grad,) = torch.autograd.grad(ours, x, grad)
    (theirs_grad,) = torch.autograd.grad(theirs, x, grad)
    torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-4, rtol=0)


# Shape, number of RoIs, range of box sides: they select the path of the CPU kernels.
VARIANTS = {
    "several batches": ((2, 33, 40, 50), 2600, (3, 12)),
    "a band of rows that moves down": ((1, 3, 400, 1300), 60, (10, 90)),
    "one RoI taller than the band": ((1, 2, 700, 900), 4, (500, 690)),
    "far apart": ((1, 40, 90, 200), 3, (5, 20)),
    "many channels, large windows": ((1, 256, 60, 70), 5, (50, 60)),
    "images without a RoI": ((5, 20, 30, 30), 6, (5, 20)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kernel_variant_matches_torchvision(device, layout, variant, two_threads, poison):
    shape, count, (min_side, max_side) = VARIANTS[variant]
    generator = torch.Generator().manual_seed(2)
    x = feature_map(*shape, layout=layout, device=device)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor(shape[:1:-1])
    side = min_side + torch.rand(count, 2, generator=generator) * (max_side - min_side)
    image = torch.randint(shape[0], (count, 1), generator=generator)
    image[image == 2] = 1
    rois = torch.cat([image, centre - side / 2, centre + side / 2], 1).to(device)
    assert torch.empty(1000).isnan().all()

    def ours():
        pooled = detops.roi_align(x, rois, 7, 1.0, 2, True)
        return pooled, torch.autograd.grad(pooled, x, grad)[0]

    # Runs on the CPU: the GPU kernel of torchvision is nondeterministic, which raises here.
    theirs = x.detach().cpu().requires_grad_()
    expected = torchvision_roi_align(theirs, rois.cpu(), 7, 1.0, 2, True)
    grad = torch.randn(expected.shape, generator=generator)
    (expected_grad,) = torch.autograd.grad(expected.double(), theirs, grad.double())
    grad = grad.to(device).contiguous(memory_format=layout)
    one, two = two_threads(ours)
    torch.testing.assert_close(one[0].cpu(), expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(one[1].cpu(), expected_grad, atol=3e-4, rtol=1e-4)
    assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])


def test_half_precision_keeps_special_values(isa):
    values = [0.0, -0.0, 6e-8, -6e-5, 65504.0, math.inf, -math.inf, math.nan, 1.0, -2.5, 1e-7]
    x = torch.tensor(values).half().view(1, len(values), 1, 1)
    x = x.expand(1, len(values), 2, 2).contiguous(memory_format=torch.channels_last)
    ours = detops.roi_align(x, torch.tensor([[0.0, 0, 0, 1, 1]]), 1, 1.0, 1)
    torch.testing.assert_close(ours.flatten(), x[0, :, 0, 0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("box", [[9.0, 1, 2, 8], [9.0, 8, 2, 1], [3.0, 3, 3, 3]])
def test_inverted_and_empty_boxes_match_torchvision(device, box):
    x = feature_map(1, 2, 12, 12, device=device)
    rois = torch.tensor([[0, *box]], device=device)
    # torchvision rejects the first of these with adaptive sampling; no sample means zero.
    assert (detops.roi_align(x, rois, 3, aligned=True) == 0).all()
    for aligned in (False, True):
        expected = torchvision_roi_align(x, rois, 3, 1.0, 2, aligned)
        torch.testing.assert_close(detops.roi_align(x, rois, 3, 1.0, 2, aligned), expected)


def test_large_adaptive_boxes_match_torchvision():
    x = feature_map(1, 2, 16, 16)
    for side in (100.0, 1500.0, 3000.0):
        rois = torch.tensor([[0, -side / 2, -side / 3, side / 2, side]])
        expected = torchvision_roi_align(x, rois, 2)
        torch.testing.assert_close(detops.roi_align(x, rois, 2), expected, atol=1e-4, rtol=0)


def test_box_of_a_hundred_thousand_pixels_is_fast():
    # Sampling one by one would read 1e8 samples. The whole feature map lies in one bin.
    x = torch.ones(1, 1, 16, 16)
    pooled = detops.roi_align(x, torch.tensor([[0.0, -1, -1, 1e5, 1e5]]), 1)
    assert pooled.item() == pytest.approx((17 / 1e5) ** 2, rel=0.01)


def test_raw_op_defaults_match_maskrcnn_benchmark():
    x, rois = feature_map(1, 2, 6, 6).detach(), random_rois(1, 3)
    assert torch.equal(
        roi_align_forward(x, rois, 0.5, 2, 3, 0), detops.roi_align(x, rois, (2, 3), 0.5)
    )


def test_backward_rejects_gradients_of_another_size():
    grad, boxes = torch.zeros(1, 2, 4, 4), torch.zeros(3, 5)
    message = r"detops.roi_align_backward: grad must be \[3, 2, 4, 4\], got \[1, 2, 4, 4\]"
    with pytest.raises(RuntimeError, match=message):
        roi_align_backward(grad, boxes, 1.0, 4, 4, 1, 2, 8, 8, 2)
