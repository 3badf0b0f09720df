"""Inputs with few channels or few, large RoIs, for which kernels read the feature map directly."""

from itertools import product

import pytest
import torch
from pool_inputs import LAYOUTS

CHANNELS = [1, 3, 5, 16, 33]
DTYPES = [torch.float32, torch.double, torch.half, torch.bfloat16]
# Feature map size, RoI sizes, number of RoIs. Sides are not a whole number away from the corner,
# because rounding would then decide how many samples an adaptive bin has.
RECTANGLES = {
    "whole map": ((23, 41), [(23, 41)], 2),
    "two pixels": ((60, 70), [(2.3, 2.2)], 3),
    "half the map": ((64, 48), [(32.4, 24.3)], 5),
    "larger than the map": ((9, 30), [(30.4, 90.3)], 2),
    "all sizes": ((50, 64), [(2.3, 2.2), (50, 64), (25.3, 3.3), (3.3, 40.4), (0.5, 0.5)], 20),
    "none": ((12, 20), [(1, 1)], 0),
}
FEW_RECTANGLES = ["whole map", "two pixels", "half the map", "none"]


def parametrize_some(names, some, *values):
    """Parametrizes by some combinations, which contain every value; the others are exhaustive."""
    for column, all_values in zip(zip(*some, strict=True), values, strict=True):
        assert set(column) == set(all_values)
    others = [
        pytest.param(*combination, marks=pytest.mark.exhaustive)
        for combination in product(*values)
        if combination not in some
    ]
    return pytest.mark.parametrize(names, [*some, *others])


def inputs(rectangle, channels, layout, dtype=torch.float32, images=2):
    (height, width), sides, count = RECTANGLES[rectangle]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, channels, height, width, generator=generator, dtype=torch.double)
    side = torch.tensor([sides[i % len(sides)] for i in range(count)]).view(-1, 2)
    space = torch.tensor([height, width]) - side
    corner = torch.rand(count, 2, generator=generator) * space
    image = torch.arange(count).view(-1, 1) % images
    rois = torch.cat([image, corner.flip(1), (corner + side).flip(1)], 1)
    return x.to(dtype).contiguous(memory_format=layout), rois


def assert_near(actual, expected, tolerance, scale=1.0):
    """Compares large tensors; torch.testing.assert_close takes three times as long."""
    assert actual.shape == expected.shape
    error = (actual.double() - expected).abs_()
    error -= expected.abs().mul_(tolerance)
    assert not error.numel() or error.max() <= tolerance * scale


def input_gradient(call, x, grad):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(call(leaf), leaf, grad)[0]


def check(ours, theirs, x, tolerance):
    """Compares forward and backward with an op on float64, and one thread with two bit for bit."""

    def forward_and_backward():
        pooled = ours(x)
        return pooled, input_gradient(ours, x, grad)

    x_float64 = x.double().contiguous()
    expected = theirs(x_float64)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    grad = grad.contiguous(memory_format=LAYOUTS[not x.is_contiguous()])
    expected_grad = input_gradient(theirs, x_float64, grad.double())
    thread_count = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        pooled, map_grad = forward_and_backward()
        torch.set_num_threads(2)
        on_two_threads = forward_and_backward()
    finally:
        torch.set_num_threads(thread_count)
    assert torch.equal(pooled, on_two_threads[0]) and torch.equal(map_grad, on_two_threads[1])
    assert pooled.dtype == map_grad.dtype == x.dtype
    for a, b in ((pooled, expected), (map_grad, expected_grad)):
        scale = max(1.0, b.abs().max().item() if b.numel() else 0)
        assert_near(a, b, tolerance, scale)
