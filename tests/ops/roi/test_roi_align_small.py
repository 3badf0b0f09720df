"""RoIAlign of RoIs with few elements, for which vectors do not pay off."""

import pytest
import torch
from pool_inputs import LAYOUTS, feature_map
from torchvision.ops import roi_align as torchvision_roi_align

import detops


def random_rois(images, count):
    """Returns RoIs; some lie wholly or partly outside the feature map, some are inverted."""
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(images, (count, 1), generator=generator)
    corner = torch.rand(count, 2, generator=generator) * 24 - 6
    side = torch.rand(count, 2, generator=generator) * 8 - 1
    return torch.cat([index, corner, corner + side], 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("size", "ratio"),
    [((1, 1), 1), ((1, 1), 2), ((2, 1), 1), ((2, 2), 2), ((1, 1), -1), ((2, 1), 0)],
)
@pytest.mark.parametrize("channels", [1, 2, 4, 5])
def test_small_rois_match_torchvision(
    device, isa, two_threads, layout, channels, size, ratio, dtype
):
    x = feature_map(3, channels, 11, 14, layout=layout, dtype=dtype, device=device).detach()
    rois = random_rois(3, 150)
    for aligned in (False, True):
        wide = x.cpu().double().requires_grad_()
        expected = torchvision_roi_align(wide, rois.double(), size, 0.9, ratio, aligned)
        grad = torch.rand(expected.shape, generator=torch.Generator().manual_seed(4)).to(dtype)
        (expected_grad,) = torch.autograd.grad(expected, wide, grad.double())

        def forward_and_backward():
            leaf = x.clone().requires_grad_()
            pooled = detops.roi_align(leaf, rois.to(device), size, 0.9, ratio, aligned)  # noqa: B023
            return pooled.detach(), *torch.autograd.grad(pooled, leaf, grad.to(device))  # noqa: B023

        one, two = two_threads(forward_and_backward)
        bound = dict(rtol=2 * torch.finfo(dtype).eps, atol=1e-12 if dtype.itemsize == 8 else 1e-4)
        for ours, ours_on_two_threads, exact in zip(
            one, two, (expected, expected_grad), strict=True
        ):
            assert ours.dtype == dtype and torch.equal(ours, ours_on_two_threads)
            torch.testing.assert_close(ours.cpu().double(), exact.detach(), **bound)


def test_batch_indices_are_checked():
    for index in (-1.0, 1.0, torch.nan):
        with pytest.raises(RuntimeError, match=r"boxes\[0, 0\] is a batch index and must be in"):
            detops.roi_align(torch.ones(1, 1, 4, 4), torch.tensor([[index, 0, 0, 2, 2]]), 1, 1.0, 1)
