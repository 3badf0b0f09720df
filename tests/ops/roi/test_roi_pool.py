import math

import pytest
import reference_roi_pool as reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.ops import roi_pool as torchvision_roi_pool

import detops
from detops._C import roi_pool_backward, roi_pool_forward

LAYOUTS = [torch.contiguous_format, torch.channels_last]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def feature_map(*shape, layout=torch.contiguous_format, dtype=torch.float32, device="cpu"):
    x = torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    return x.to(dtype).to(device).contiguous(memory_format=layout).requires_grad_()


def random_rois(images, count, size=40.0, dtype=torch.float32):
    """Returns RoIs that exceed a feature map of `size`; some are inverted, many have halves."""
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(images, (count, 1), generator=generator)
    low = torch.rand(count, 2, generator=generator) * size * 1.4 - size * 0.4
    high = low + torch.rand(count, 2, generator=generator) * size - size * 0.1
    boxes = (torch.cat([low, high], 1) * 4).round() / 4
    return torch.cat([index, boxes], 1).to(dtype)


SHAPES = [
    ((2, 37, 25, 31), (7, 5)), ((1, 3, 7, 5), (1, 1)), ((2, 64, 20, 21), (14, 14)),
    ((1, 1, 1, 1), (2, 2)), ((3, 70, 1, 40), (3, 4)), ((2, 33, 9, 1), (2, 3)),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 0.5, 0.0625])
@pytest.mark.parametrize(("shape", "size"), SHAPES)
def test_roi_pool_matches_torchvision(isa, device, layout, dtype, scale, shape, size):
    x = feature_map(*shape, layout=layout, dtype=dtype, device=device)
    rois = random_rois(shape[0], 40, max(shape[2:]) / scale, dtype).to(device)
    theirs, their_index = torch.ops.torchvision.roi_pool(x, rois, scale, *size)
    ours, index = roi_pool_forward(x.detach(), rois, scale, *size)
    assert torch.equal(ours, theirs) and torch.equal(index, their_index)
    if min(shape[1:]) > 1:
        assert ours.is_contiguous(memory_format=layout)
    pooled = detops.roi_pool(x, rois, size, scale)
    assert torch.equal(pooled, theirs)
    grad = torch.randn_like(theirs)
    (ours_grad,) = torch.autograd.grad(pooled, x, grad)
    (theirs_grad,) = torch.autograd.grad(theirs, x, grad)
    exact, magnitude = reference.roi_pool_backward(grad.cpu(), rois.cpu(), index.cpu(), x.shape)
    # The sums have so few terms that their error stays within eight roundings.
    for one in (ours_grad, theirs_grad):
        error = (one.cpu().double() - exact).abs()
        assert (error <= 8 * torch.finfo(dtype).eps * magnitude).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_roi_pool_matches_reference(isa, device, layout, dtype):
    x = feature_map(2, 5, 9, 12, layout=layout, dtype=dtype, device=device).detach()
    x[0, 1, 2:5] = 1.0  # ties: the first counts
    rois = random_rois(2, 25, 14.0).to(device)
    for size, scale in (((3, 2), 1.0), ((4, 5), 0.7), ((1, 1), 2.0)):
        expected, expected_index = reference.roi_pool(x.cpu(), rois.cpu(), size, scale)
        ours, index = roi_pool_forward(x, rois, scale, *size)
        assert ours.dtype == dtype
        assert torch.equal(ours.cpu().double(), expected)
        assert torch.equal(index.cpu(), expected_index)


# Shape, number of RoIs, range of box sides: they select the path of the CPU kernels.
VARIANTS = {
    "many RoIs": ((2, 33, 40, 50), 2600, (3, 12)),
    "one image, many channels": ((1, 130, 41, 50), 300, (3, 30)),
    "a band of rows that moves down": ((1, 3, 400, 1300), 60, (10, 90)),
    "one RoI taller than the band": ((1, 2, 700, 900), 4, (500, 690)),
    "few planes": ((3, 2, 40, 50), 90, (2, 9)),
    "far apart": ((1, 40, 90, 200), 3, (5, 20)),
    "images without a RoI": ((5, 20, 30, 30), 6, (5, 20)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kernel_variant_matches_torchvision(
    device, layout, dtype, variant, two_threads, poison
):
    shape, count, (min_side, max_side) = VARIANTS[variant]
    generator = torch.Generator().manual_seed(2)
    x = feature_map(*shape, layout=layout, device=device, dtype=dtype)
    centre = torch.rand(count, 2, generator=generator) * torch.tensor(shape[:1:-1])
    side = min_side + torch.rand(count, 2, generator=generator) * (max_side - min_side)
    image = torch.randint(shape[0], (count, 1), generator=generator)
    image[image == 2] = 1
    rois = torch.cat([image, centre - side / 2, centre + side / 2], 1).to(device)
    # Runs on the CPU: the GPU kernel of torchvision is nondeterministic, which raises here.
    wide = x.detach().float().cpu().requires_grad_()
    expected = torchvision_roi_pool(wide, rois.cpu(), 7)
    grad = torch.randn(expected.shape, generator=generator).to(dtype)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.float())
    grad = grad.to(device).contiguous(memory_format=layout)

    def ours():
        pooled = detops.roi_pool(x, rois, 7)
        return pooled, torch.autograd.grad(pooled, x, grad)[0]

    one, two = two_threads(ours)
    assert torch.equal(one[0].cpu(), expected.to(dtype))
    rounding = 2**-8 if dtype == torch.bfloat16 else 0
    torch.testing.assert_close(one[1].float().cpu(), expected_grad, atol=2e-5, rtol=1e-5 + rounding)
    repeated = ours()
    for a, b, c in zip(one, two, repeated, strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_maximum_skips_nan_pixels(isa, device, layout):
    nan, inf = math.nan, math.inf
    rows = [[nan, 1.0, 3.0], [3.0, nan, -inf], [nan, nan, -inf], [-inf, nan, inf]]
    x = torch.tensor(rows, device=device).view(1, 1, 4, 3).expand(1, 19, 4, 3)
    x = x.contiguous(memory_format=layout).requires_grad_()
    boxes = [[0, 0, 2, 0], [0, 1, 2, 1], [0, 2, 1, 2], [2, 1, 2, 2], [1, 2, 2, 2], [0, 0, 2, 3]]
    rois = torch.tensor([[0.0, *b] for b in boxes], device=device)
    expected = torch.tensor([3.0, 3.0, nan, -inf, nan, inf], device=device)
    index = torch.tensor([2, 3, 6, 5, 7, 11], device=device)
    ours, argmax = roi_pool_forward(x.detach(), rois, 1.0, 1, 1)
    for c in range(19):
        torch.testing.assert_close(ours[:, c, 0, 0], expected, equal_nan=True, rtol=0, atol=0)
        assert torch.equal(argmax[:, c, 0, 0].long(), index)
    # Bins with a number match torchvision.
    theirs = torchvision_roi_pool(x, rois, 1)
    keep = [0, 1, 5]
    assert torch.equal(ours[keep], theirs[keep])
    (grad,) = torch.autograd.grad(detops.roi_pool(x, rois, 1), x, torch.ones_like(theirs))
    assert grad.sum() == theirs.numel()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_backward_ignores_invalid_argmax(device, values_are_checked, layout, dtype):
    x = feature_map(1, 2, 4, 5, layout=layout, device=device, dtype=dtype).detach()
    rois = torch.tensor([[0.0, 0, 0, 4, 3]], device=device)
    argmax = torch.tensor([20, -7, 2**31 - 1, 3, -(2**31), 19, 20, -1], dtype=torch.int32)
    grad = torch.ones(1, 2, 2, 2, device=device, dtype=dtype)
    argmax = argmax.view(1, 2, 2, 2).to(device)
    grad_x = roi_pool_backward(grad, x, rois, argmax, 1.0, 2, 2, 1, 2, 4, 5)
    if values_are_checked:
        assert grad_x.sum() == 2 and grad_x[0, 0, 0, 3] == 1 and grad_x[0, 1, 3, 4] == 1


ODD_BOXES = {
    "nan": ([math.nan, 0, 5, 5], 0),
    "infinite": ([0, 0, math.inf, 5], 0),
    "both infinite": ([-math.inf, -math.inf, math.inf, math.inf], 0),
    "billion": ([-1e9, -1e9, 1e9, 1e9], None),
    "1e30": ([-1e30, -1e30, 1e30, 1e30], None),
    "too wide for a float": ([-3e38, -3e38, 3e38, 3e38], 0),
    "far away": ([1e9, 1e9, 1e9 + 64, 1e9 + 64], 0),
    "inverted far away": ([1e30, 1e30, -1e30, -1e30], 0),
}


@pytest.mark.parametrize(("box", "value"), ODD_BOXES.values(), ids=ODD_BOXES.keys())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_malformed_boxes_pool_to_zero_or_the_maximum(device, box, value, layout):
    x = feature_map(1, 3, 16, 16, layout=layout, device=device)
    rois = torch.tensor([[0.0, *box], [0, 1, 1, 9, 9]], device=device)
    for size in (1, 7):
        pooled = detops.roi_pool(x, rois, size)
        if value is not None:
            assert (pooled[0] == value).all()
        else:  # the middle bin holds the whole map
            middle = pooled[0, :, size // 2, size // 2]
            assert torch.equal(middle, x.amax((0, 2, 3)))
        assert torch.equal(pooled[1:], detops.roi_pool(x, rois[1:], size))
        (grad,) = torch.autograd.grad(pooled.sum(), x)
        assert grad.isfinite().all()


X, R = torch.zeros(1, 2, 4, 4), torch.zeros(3, 5)
G, A = torch.zeros(3, 2, 2, 2), torch.zeros(3, 2, 2, 2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: roi_pool_forward(torch.empty(1, 1, 2**16, 2**16, device="meta"),
                                  R.to("meta"), 1.0, 2, 2),
         "detops.roi_pool: a map must have at most 2147483647 pixels, got 65536 x 65536"),
        (lambda: roi_pool_backward(X, X, R, A, 1.0, 4, 4, 1, 2, 8, 8),
         r"detops.roi_pool_backward: grad must be \[3, 2, 4, 4\], got \[1, 2, 4, 4\]"),
        (lambda: roi_pool_backward(G, X, R, A[:2], 1.0, 2, 2, 1, 2, 4, 4),
         r"argmax must be \[3, 2, 2, 2\], got \[2, 2, 2, 2\]"),
        (lambda: roi_pool_backward(G, X, R, A.long(), 1.0, 2, 2, 1, 2, 4, 4),
         r"argmax must be int32, got int64"),
        (lambda: roi_pool_backward(G, X.double(), R, A, 1.0, 2, 2, 1, 2, 4, 4),
         r"grad must have the dtype of input \(float64\), got float32"),
        (lambda: roi_pool_backward(G, X[0], R, A, 1.0, 2, 2, 1, 2, 4, 4),
         r"roi_pool_backward: input must be \[N, C, H, W\]"),
        (lambda: roi_pool_backward(G, X, R, A, 1.0, 2, 2, 1, 2, 2**20, 2**20),
         "roi_pool_backward: a map must have at most 2147483647 pixels"),
        (lambda: roi_pool_backward(G, X, R, A, 1.0, 2, 2, 1, 2, 0, 4),
         "roi_pool_backward: the input's size must be"),
    ],
)  # fmt: skip
def test_raw_roi_pool_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=message):
        call()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        call()


@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from([1.0, 0.5, 1e-3, 1e3]),
    st.booleans(),
)
def test_any_boxes_match_reference(boxes, size, scale, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = feature_map(1, 2, 5, 6, layout=layout)
    rois = torch.tensor([[0.0, *b] for b in boxes])
    expected, index = reference.roi_pool(x, rois, (size, size), scale)
    ours, argmax = roi_pool_forward(x.detach(), rois, scale, size, size)
    assert torch.equal(ours.double(), expected) and torch.equal(argmax, index)
    (grad,) = torch.autograd.grad(detops.roi_pool(x, rois, size, scale).sum(), x)
    assert grad.isfinite().all() and grad.sum() == (index >= 0).sum()
