"""ps_roi_align and ps_roi_pool."""

import pytest
import reference_roi_pool as reference
import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from test_roi_pool import LAYOUTS, feature_map, random_rois

import detops
from detops import _C

# Op, and its arguments after the scale.
OPS = [("ps_roi_align", (2,)), ("ps_roi_align", (-1,)), ("ps_roi_align", (3,)), ("ps_roi_pool", ())]


def with_positive_sides(rois):
    """Makes RoI sizes positive: adaptive sampling in torchvision divides 0 by 0 otherwise."""
    return torch.cat([rois[:, :3], rois[:, 1:3] + (rois[:, 3:] - rois[:, 1:3]).abs() + 1], 1)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("op", "extra"), OPS)
@pytest.mark.parametrize(
    ("shape", "groups", "size"),
    [((2, 25, 31), 10, (7, 5)), ((1, 40, 33), 3, (1, 1)), ((2, 20, 6), 1, (3, 12)),
     ((1, 1, 1), 2, (2, 2)), ((3, 2, 40), 6, (3, 4)), ((1, 30, 2), 4, (5, 2))],
)  # fmt: skip
def test_ps_roi_ops_match_torchvision(isa, device, layout, dtype, op, extra, shape, groups, size):
    n, height, width = shape
    x = feature_map(
        n, groups * size[0] * size[1], height, width, layout=layout, dtype=dtype, device=device
    )
    theirs = getattr(torchvision.ops, op)
    atol = 1e-12 if dtype == torch.double else 3e-6
    for scale in (1.0, 0.25):
        rois = with_positive_sides(random_rois(n, 40, max(height, width) / scale, dtype)).to(device)
        ours = getattr(detops, op)(x, rois, size, scale, *extra)
        expected = theirs(x, rois, size, scale, *extra)
        torch.testing.assert_close(ours, expected, atol=atol, rtol=0)
        if groups > 1 and min(shape[1:]) > 1:
            assert ours.is_contiguous(memory_format=layout)
        if op == "ps_roi_pool":  # see test_pool_gradient_is_the_transpose_of_forward
            continue
        grad = torch.randn(expected.shape, dtype=dtype, generator=torch.Generator().manual_seed(3))
        grad = grad.to(device)
        (ours_grad,) = torch.autograd.grad(ours, x, grad)
        (expected_grad,) = torch.autograd.grad(expected, x, grad)
        torch.testing.assert_close(ours_grad, expected_grad, atol=10 * atol, rtol=0)


def test_pool_gradient_is_the_transpose_of_forward(isa, device):
    """torchvision skips the last row and column in its forward pass, but not in its backward."""
    x = feature_map(2, 3 * 6, 20, 24, device=device)
    # Far from the last row and column.
    rois = with_positive_sides(random_rois(2, 30, 10.0)).to(device)
    for output_size in ((2, 3), (3, 2)):
        ours = detops.ps_roi_pool(x, rois, output_size)
        theirs = torchvision.ops.ps_roi_pool(x, rois, output_size)
        grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3)).to(device)
        (ours_grad,) = torch.autograd.grad(ours, x, grad)
        (theirs_grad,) = torch.autograd.grad(theirs, x, grad)
        torch.testing.assert_close(ours_grad, theirs_grad, atol=3e-6, rtol=0)
    border_roi = torch.tensor([[0.0, 18, 14, 30, 26]], device=device)
    ours, theirs = (
        detops.ps_roi_pool(x, border_roi, 1),
        torchvision.ops.ps_roi_pool(x, border_roi, 1),
    )
    torch.testing.assert_close(ours, theirs)
    (ours_grad,) = torch.autograd.grad(ours.sum(), x)
    (theirs_grad,) = torch.autograd.grad(theirs.sum(), x)
    assert (ours_grad[:, :, -1] == 0).all() and (theirs_grad[0, :, -1, 18:] != 0).all()
    grad_dot_x = (ours_grad * x).sum()
    torch.testing.assert_close(grad_dot_x, ours.sum())


# Shape, groups, bins, RoIs.
VARIANTS = {
    "many RoIs": ((2, 40, 50), 5, (3, 2), 2600),
    "large map": ((1, 300, 401), 2, (2, 1), 40),
    "more bins than lanes": ((1, 12, 20), 3, (9, 9), 30),
    "images without a RoI": ((5, 20, 30), 4, (2, 2), 6),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS[1:])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kernel_variant_matches_torchvision(
    device, layout, op, extra, variant, two_threads, poison
):
    (n, height, width), groups, size, count = VARIANTS[variant]
    x = feature_map(n, groups * size[0] * size[1], height, width, layout=layout, device=device)
    rois = with_positive_sides(random_rois(n, count, float(max(height, width))))
    rois[rois[:, 0] == 2, 0] = 1
    rois = rois.to(device)
    expected = getattr(torchvision.ops, op)(x, rois, size, 1.0, *extra)
    grad = torch.randn(expected.shape, generator=torch.Generator().manual_seed(3)).to(device)

    def ours():
        pooled = getattr(detops, op)(x, rois, size, 1.0, *extra)
        return pooled, torch.autograd.grad(pooled, x, grad)[0]

    one, two = two_threads(ours)
    for a, b, c in zip(one, two, ours(), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)
    # Rounding in bins of many hundred pixels adds up to about 1e-5.
    torch.testing.assert_close(one[0], expected, atol=2e-5, rtol=0)
    # The transpose: <pool(x), g> = <x, spread(g)>.
    pooled = (one[0].double() * grad.double()).sum()
    torch.testing.assert_close((x.double() * one[1].double()).sum(), pooled, atol=1e-3, rtol=1e-6)


X, R, G = torch.zeros(1, 8, 4, 4), torch.zeros(3, 5), torch.zeros(3, 2, 2, 2)


@pytest.mark.parametrize("op", ["ps_roi_align", "ps_roi_pool"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, b: f(X, R, 3),
         ": input must have a multiple of output_size's 3 x 3 channels, got 8"),
        (lambda f, b: f(X, R, 2**40), ": pooled_height must be at most 2147483647"),
        (lambda f, b: b(X, R, 1, 8, 4, 4),
         r"_backward: grad must be \[3, 2, 2, 2\], got \[1, 8, 4, 4\]"),
        (lambda f, b: b(G, R, 1, 9, 4, 4), "_backward: input must have a multiple of.*got 9"),
        (lambda f, b: b(G, R, 1, 8, 0, 4), "_backward: the input's size must be"),
    ],
)  # fmt: skip
def test_ps_roi_ops_reject_bad_input(op, call, message):
    def backward(grad, rois, *size):
        extra = (2,) if op == "ps_roi_align" else ()
        return getattr(_C, f"{op}_backward")(grad, rois, 1.0, 2, 2, *size, *extra)

    with pytest.raises(RuntimeError, match=f"detops.{op}{message}"):
        call(getattr(detops, op), backward)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=f"detops.{op}{message}"):
        call(getattr(detops, op), backward)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=4),
    st.sampled_from([1.0, 0.5, 1e-3, 1e3]),
    st.sampled_from([5, 40]),
    st.booleans(),
)
def test_ps_roi_pool_of_any_boxes_matches_reference(boxes, scale, width, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = feature_map(1, 12, 5, width, layout=layout)
    rois = torch.tensor([[0.0, *b] for b in boxes])
    expected = reference.ps_roi_pool(x, rois, (3, 2), scale)
    pooled = detops.ps_roi_pool(x, rois, (3, 2), scale)
    torch.testing.assert_close(pooled.double(), expected, atol=2e-6, rtol=0)
