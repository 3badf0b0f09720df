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


def some_of_all(names, some, *values):
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
    room = torch.tensor([height, width]) - side
    corner = torch.rand(count, 2, generator=generator) * room
    image = torch.arange(count).view(-1, 1) % images
    rois = torch.cat([image, corner.flip(1), (corner + side).flip(1)], 1)
    return x.to(dtype).contiguous(memory_format=layout), rois


def gradient_of(call, x, grad):
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(call(leaf), leaf, grad)[0]


def check(ours, theirs, x, tolerance):
    """Compares forward and backward with an op on float64, and one thread with two bit for bit."""

    def both():
        pooled = ours(x)
        return pooled, gradient_of(ours, x, grad)

    wide = x.double().contiguous()
    expected = theirs(wide)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    grad = grad.contiguous(memory_format=LAYOUTS[not x.is_contiguous()])
    expected_grad = gradient_of(theirs, wide, grad.double())
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        pooled, map_grad = both()
        torch.set_num_threads(2)
        again = both()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(pooled, again[0]) and torch.equal(map_grad, again[1])
    assert pooled.dtype == map_grad.dtype == x.dtype
    for a, b in ((pooled, expected), (map_grad, expected_grad)):
        scale = max(1.0, b.abs().max().item() if b.numel() else 0)
        torch.testing.assert_close(a.double(), b, atol=tolerance * scale, rtol=tolerance)
