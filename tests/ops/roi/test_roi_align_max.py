import math
from functools import cache

import pytest
import reference_max_samples as reference
import torch
from cases_roi_align_max import CASES
from pool_inputs import LAYOUTS

import detops
from detops.bench.roi_align_max import plain_roi_align_max

CASE = CASES[0]


@cache
def positions(channels, ratio, aligned):
    """Returns a case, its tensors in float64, and the positions of the maxima."""
    case = CASE.with_options(sampling_ratio=ratio, aligned=aligned)
    tensors = case.tensors(channels=channels, dtype=torch.float64)
    plain = [t.detach() for t in tensors.values()]
    return case, tensors, reference.roi_align_max(*plain, **case.options)[1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("channels", [1, 5, 17, 70])
def test_positions_of_maxima_match_reference(isa, device, channels, ratio, aligned, layout):
    case, tensors, expected = positions(channels, ratio, aligned)
    x, boxes = case.cast(tensors, torch.float64, device, layout).values()
    (height, width), scale = case.options["output_size"], case.options["spatial_scale"]
    args = (x, boxes, scale, height, width, ratio, aligned)
    _, ys, xs = torch.ops.detops.roi_align_max_forward(*args)
    torch.testing.assert_close(torch.stack([ys, xs], -1).cpu(), expected)


def test_one_sample_per_bin_is_roi_align(device):
    one = CASE.with_options(sampling_ratio=1)
    tensors = one.tensors(device=device)
    expected = detops.roi_align(*tensors.values(), **one.options)
    torch.testing.assert_close(one(tensors), expected)


def test_benchmark_baseline_matches_roi_align_max():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 20, 30, generator=generator)
    boxes = torch.rand(4, 4, generator=generator).cumsum(1) * 60 + 40
    boxes = torch.cat([torch.zeros(4, 1), boxes], 1)
    found = detops.roi_align_max(x, boxes, 7, 1 / 16, 2, aligned=True)
    torch.testing.assert_close(found, plain_roi_align_max(x, boxes))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_first_of_equal_samples_gets_the_gradient(isa, device, layout):
    x = torch.zeros(1, 40, 6, 6, device=device).contiguous(memory_format=layout)
    box = torch.tensor([[0.0, 0, 0, 4, 4]], device=device)  # samples lie on pixels
    x[..., 3, 3] = x[..., 1, 1] = 5
    x.requires_grad_()
    found = detops.roi_align_max(x, box, 1, 1.0, 4, aligned=True)
    assert (found == 5).all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert (grad[..., 1, 1] == 1).all() and grad.sum() == 40


@pytest.mark.parametrize("layout", LAYOUTS)
def test_samples_beyond_the_map_are_zero_without_gradient(isa, device, layout):
    x = torch.full((1, 40, 4, 4), -1.0, device=device).contiguous(memory_format=layout)
    x[:, 20:] = 1
    x.requires_grad_()
    box = torch.tensor([[0.0, 2, 2, 10, 10]], device=device)
    found = detops.roi_align_max(x, box, 1, 1.0, 4)
    assert (found[:, :20] == 0).all() and (found[:, 20:] == 1).all()
    (grad,) = torch.autograd.grad(found.sum(), x)
    assert not grad[:, :20].any() and grad.sum() == 20


@pytest.mark.parametrize("layout", LAYOUTS)
def test_maximum_skips_nan_and_zero_weight_pixels(isa, device, layout):
    nan, inf = math.nan, math.inf
    x = torch.zeros(1, 20, 4, 4, device=device).contiguous(memory_format=layout)
    box = torch.tensor([[0.0, 0, 0, 2, 2]], device=device)  # samples lie on pixels 0 and 1

    def pooled():
        return detops.roi_align_max(x, box, 1, 1.0, 2, aligned=True).flatten()

    x[..., 0, 0] = nan
    assert not pooled().any()
    x[..., :2, :2] = -inf
    assert (pooled() == -inf).all()
    x[..., :2, :2] = nan
    assert pooled().isnan().all()
    x[..., :2, :2], x[..., 2, :] = 1, inf  # next to the read pixels, with a weight of 0
    assert (pooled() == 1).all()


def test_backward_ignores_invalid_positions(device):
    x, boxes = CASE.tensors(device=device).values()
    grad = torch.ones(8, 4, 2, 3, device=device)
    for position in (math.nan, math.inf, -1e30, 1e9):
        positions = torch.full_like(grad, position)
        args = (grad, boxes, positions, positions, 0.5, 2, 3, *x.shape, 2, True)
        assert not torch.ops.detops.roi_align_max_backward(*args).any()
