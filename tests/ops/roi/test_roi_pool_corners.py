"""RoI pooling with few channels or few, large RoIs, for which kernels read feature maps directly.

The ordinary suite runs a part of the combinations: each value of each parameter, with each
instruction set and layout.
"""

import pytest
import reference_roi_pool
import torch
import torchvision  # noqa: F401 - registers torch.ops.torchvision
from corner_inputs import (
    CHANNELS,
    DTYPES,
    FEW_RECTANGLES,
    LAYOUTS,
    RECTANGLES,
    assert_near,
    inputs,
    parametrize_some,
)

import detops

pytestmark = pytest.mark.slow


@parametrize_some(
    ("rectangle", "channels", "dtype", "size"),
    [
        ("whole map", 16, torch.half, (7, 5)),
        ("two pixels", 1, torch.bfloat16, (7, 5)),
        ("half the map", 3, torch.float32, (40, 3)),
        ("larger than the map", 5, torch.double, (7, 5)),
        ("all sizes", 33, torch.bfloat16, (1, 1)),
        ("all sizes", 5, torch.half, (40, 3)),
        ("all sizes", 16, torch.float32, (7, 5)),
        ("none", 3, torch.double, (1, 1)),
    ],
    RECTANGLES,
    CHANNELS,
    DTYPES,
    [(1, 1), (7, 5), (40, 3)],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_roi_pool_matches_torchvision(isa, dtype, size, channels, layout, rectangle, poison):
    x, rois = inputs(rectangle, channels, layout, dtype)
    x[0, :, 3:5] = x[0, :, 3:4, :1]  # ties: the first counts
    x[-1, 0, 5] = torch.nan
    x[-1, -1, :, 7] = -torch.inf
    rois = rois.to(torch.promote_types(dtype, torch.float32))
    pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, *size)
    wide = x.float() if dtype != torch.double else x
    expected, expected_argmax = torch.ops.torchvision.roi_pool(wide.contiguous(), rois, 1.0, *size)
    # If a bin has no pixel above -inf, torchvision returns -inf or the lowest number.
    has_maximum = expected_argmax >= 0
    assert torch.equal(argmax[has_maximum], expected_argmax[has_maximum])
    assert torch.equal(pooled[has_maximum], expected[has_maximum].to(dtype))
    geometry = (1.0, *size, *x.shape)
    grad = torch.randn(pooled.shape).to(dtype).contiguous(memory_format=layout)

    def backward():
        return detops._C.roi_pool_backward(grad, x, rois, argmax, *geometry)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    one = backward()
    torch.set_num_threads(2)
    two = backward()
    torch.set_num_threads(before)
    sums = torch.zeros(x[:, :, 0, 0].numel(), x[0, 0].numel(), dtype=torch.double)
    image = rois[:, 0].long().view(-1, 1, 1, 1)
    rows = (image * channels + torch.arange(channels).view(-1, 1, 1)).expand(argmax.shape)
    some = argmax >= 0
    sums.index_put_((rows[some], argmax[some].long()), grad[some].double(), accumulate=True)
    tolerance = {torch.half: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
    assert_near(one, sums.view(x.shape), tolerance)
    assert torch.equal(one, two)


@parametrize_some(
    ("rectangle", "channels", "op"),
    [
        ("whole map", 1, "ps_roi_align"),
        ("whole map", 16, "ps_roi_pool"),
        ("two pixels", 33, "ps_roi_align"),
        ("two pixels", 3, "ps_roi_pool"),
        ("half the map", 5, "ps_roi_align"),
        ("half the map", 1, "ps_roi_pool"),
        ("none", 3, "ps_roi_align"),
        ("none", 5, "ps_roi_pool"),
    ],
    FEW_RECTANGLES,
    CHANNELS,
    ["ps_roi_align", "ps_roi_pool"],
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_position_sensitive_ops_match_float64(isa, channels, layout, rectangle, op, poison):
    x, rois = inputs(rectangle, 6 * channels, layout)
    rois = rois[:, [0, 1, 2, 3, 4]]
    x[:, :, -1] = 0  # ps_roi_pool of torchvision and detops treat it differently
    x[:, :, :, -1] = 0
    extra = (2,) if op == "ps_roi_align" else ()
    rois = rois.round() if op == "ps_roi_pool" else rois
    pooled = getattr(detops, op)(x, rois, (3, 2), 1.0, *extra)
    raw = getattr(detops._C, f"{op}_backward")
    grad = torch.randn(pooled.shape).contiguous(memory_format=layout)
    one = raw(grad, rois, 1.0, 3, 2, *x.shape, *extra)
    # Backward is the transpose of forward, which other tests compare with torchvision, too.
    wide = x.double().requires_grad_()
    linear = getattr(detops, op)(wide, rois.double(), (3, 2), 1.0, *extra)
    torch.testing.assert_close(pooled.double(), linear.detach(), atol=1e-4, rtol=1e-4)
    (expected,) = torch.autograd.grad(linear, wide, grad.double())
    assert_near(one, expected, 1e-4)


@parametrize_some(
    ("rectangle", "channels", "dtype", "size", "op"),
    [
        ("whole map", 1, torch.float32, (3, 2), "ps_roi_align"),
        ("whole map", 9, torch.bfloat16, (3, 2), "ps_roi_pool"),
        ("two pixels", 33, torch.half, (3, 2), "ps_roi_align"),
        ("two pixels", 1, torch.double, (3, 2), "ps_roi_pool"),
        ("half the map", 9, torch.bfloat16, (1, 1), "ps_roi_align"),
        ("half the map", 33, torch.half, (3, 2), "ps_roi_pool"),
        ("none", 1, torch.double, (3, 2), "ps_roi_align"),
        ("none", 33, torch.float32, (1, 1), "ps_roi_pool"),
    ],
    FEW_RECTANGLES,
    [1, 9, 33],
    DTYPES,
    [(1, 1), (3, 2)],
    ["ps_roi_align", "ps_roi_pool"],
)
def test_both_layouts_give_the_same_position_sensitive_bits(
    isa, dtype, channels, size, rectangle, op, poison
):
    """The kernel reads a channels_last feature map directly or copies planes: the bits agree."""
    x, rois = inputs(rectangle, size[0] * size[1] * channels, torch.contiguous_format, dtype, 1)
    rois = rois.to(torch.promote_types(dtype, torch.float32))
    rois[:, 0] = 0
    last = x.contiguous(memory_format=torch.channels_last)
    extra = (-1,) if op == "ps_roi_align" else ()
    call, raw = getattr(detops, op), getattr(detops._C, f"{op}_backward")
    pooled = call(x, rois, size, 1.0, *extra)
    assert torch.equal(call(last, rois, size, 1.0, *extra), pooled)
    many = rois.repeat(40, 1)  # enough RoIs for copies
    assert torch.equal(call(last, many, size, 1.0, *extra), pooled.repeat(40, 1, 1, 1))
    tolerance = {torch.half: 2e-3, torch.bfloat16: 1e-2}.get(dtype, 1e-5)
    if channels == 1:
        expected = getattr(reference_roi_pool, op)(x, rois, size, 1.0, *extra)
        torch.testing.assert_close(pooled.double(), expected, atol=tolerance, rtol=tolerance)
    grad = torch.randn(pooled.shape).to(dtype)
    wide = x.double().requires_grad_()
    linear = call(wide, rois.double(), size, 1.0, *extra)
    (expected,) = torch.autograd.grad(linear, wide, grad.double())
    for layout in LAYOUTS:
        grad_x = raw(grad.contiguous(memory_format=layout), rois, 1.0, *size, *x.shape, *extra)
        assert_near(grad_x, expected, tolerance)
    if dtype in (torch.half, torch.bfloat16):  # rounded once
        sums = raw(grad.float(), rois, 1.0, *size, *x.shape, *extra)
        assert torch.equal(raw(grad, rois, 1.0, *size, *x.shape, *extra), sums.to(dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [1, 3, 33])
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_roi_pool_gradient_of_few_bins_matches_sums(isa, dtype, channels, layout, poison):
    # With so few bins, each sum has its own slot instead of a copy of the feature map.
    x = torch.randn(2, channels, 90, 100).to(dtype).contiguous(memory_format=layout)
    box = [20.0, 30, 60, 70]
    rois = torch.tensor([[1, *box], [0, *box], [1, *box], [1, 0, 0, 9, 9]])  # several per pixel
    pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, 3, 2)
    argmax[3, 0, 0, 0], argmax[3, 0, 0, 1] = -1, 90 * 100  # outside the map
    grad = torch.randn(pooled.shape).to(dtype).contiguous(memory_format=layout)
    found = detops._C.roi_pool_backward(grad, x, rois, argmax, 1.0, 3, 2, *x.shape)
    sums = torch.zeros(2, channels, 90 * 100)
    for k, roi in enumerate(rois):
        for c in range(channels):
            for index, g in zip(argmax[k, c].flatten().tolist(), grad[k, c].flatten(), strict=True):
                if 0 <= index < 90 * 100:
                    sums[int(roi[0]), c, index] += g.float()
    tolerance = {torch.half: 2e-3, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(
        found.float().flatten(2), sums, atol=tolerance, rtol=tolerance, check_stride=False
    )


@pytest.mark.parametrize("channels", [1, 4, 6])
def test_roi_pool_of_subpixel_bins_matches_torchvision(isa, channels, poison):
    # Neighbouring bins share pixels.
    x, rois = inputs("all sizes", channels, torch.contiguous_format)
    for size in ((28, 28), (90, 3), (2, 130)):
        pooled, argmax = detops._C.roi_pool_forward(x, rois, 1.0, *size)
        expected, expected_argmax = torch.ops.torchvision.roi_pool(x, rois, 1.0, *size)
        assert torch.equal(pooled, expected) and torch.equal(argmax, expected_argmax)
