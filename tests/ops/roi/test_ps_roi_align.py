"""ps_roi_align and ps_roi_pool."""

import math

import pytest
import reference_roi_pool as reference
import torch
import torchvision.ops
from hypothesis import given, settings
from hypothesis import strategies as st
from test_roi_pool import DTYPES, LAYOUTS, feature_map, rois_for
from torch.autograd import gradcheck, gradgradcheck

import detops
from detops import _C

# Op, and its arguments after the scale.
OPS = [("ps_roi_align", (2,)), ("ps_roi_align", (-1,)), ("ps_roi_align", (3,)), ("ps_roi_pool", ())]


def proper(rois):
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
        rois = proper(rois_for(n, 40, max(height, width) / scale, dtype)).to(device)
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
    rois = proper(rois_for(2, 30, 10.0)).to(device)  # far from the last row and column
    for output_size in ((2, 3), (3, 2)):
        ours = detops.ps_roi_pool(x, rois, output_size)
        theirs = torchvision.ops.ps_roi_pool(x, rois, output_size)
        grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(3)).to(device)
        (ours_grad,) = torch.autograd.grad(ours, x, grad)
        (theirs_grad,) = torch.autograd.grad(theirs, x, grad)
        torch.testing.assert_close(ours_grad, theirs_grad, atol=3e-6, rtol=0)
    across = torch.tensor([[0.0, 18, 14, 30, 26]], device=device)
    ours, theirs = detops.ps_roi_pool(x, across, 1), torchvision.ops.ps_roi_pool(x, across, 1)
    torch.testing.assert_close(ours, theirs)
    (ours_grad,) = torch.autograd.grad(ours.sum(), x)
    (theirs_grad,) = torch.autograd.grad(theirs.sum(), x)
    assert (ours_grad[:, :, -1] == 0).all() and (theirs_grad[0, :, -1, 18:] != 0).all()
    spread = (ours_grad * x).sum()
    torch.testing.assert_close(spread, ours.sum())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "extra"), OPS)
def test_ps_roi_ops_match_reference(isa, device, layout, dtype, op, extra):
    x = feature_map(2, 5 * 6, 9, 18, layout=layout, dtype=dtype, device=device).detach()
    rois = rois_for(2, 12, 14.0).to(device)
    rois[0, 3:] = rois[0, 1:3]  # empty
    for size, scale in (((3, 2), 1.0), ((1, 6), 0.7)):
        expected = getattr(reference, op)(x.cpu(), rois.cpu(), size, scale, *extra)
        ours = getattr(detops, op)(x, rois, size, scale, *extra)
        assert ours.dtype == dtype
        rounding = {torch.double: 0, torch.float32: 0}.get(dtype, torch.finfo(dtype).eps)
        torch.testing.assert_close(ours.cpu().double(), expected, atol=5e-6, rtol=rounding)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("op", "extra"), OPS)
@pytest.mark.parametrize("width", [5, 19])
def test_half_precision_rounds_once(isa, device, dtype, layout, op, extra, width):
    half = feature_map(2, 7 * 15, 16, width, layout=layout, dtype=dtype, device=device)
    wide = half.detach().float().requires_grad_()
    rois = rois_for(2, 50, 20.0).to(device)
    call = getattr(detops, op)
    ours, expected = call(half, rois, (5, 3), 0.5, *extra), call(wide, rois, (5, 3), 0.5, *extra)
    assert ours.dtype == dtype and torch.equal(ours, expected.to(dtype))
    grad = torch.randn(expected.shape, device=device).to(dtype)
    (ours_grad,) = torch.autograd.grad(ours, half, grad)
    (expected_grad,) = torch.autograd.grad(expected, wide, grad.float())
    assert torch.equal(ours_grad, expected_grad.to(dtype))


# Shape, groups, bins, RoIs.
WAYS = {
    "many RoIs": ((2, 40, 50), 5, (3, 2), 2600),
    "large map": ((1, 300, 401), 2, (2, 1), 40),
    "more bins than lanes": ((1, 12, 20), 3, (9, 9), 30),
    "images without a RoI": ((5, 20, 30), 4, (2, 2), 6),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS[1:])
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_path_matches_torchvision_on_any_threads(
    device, layout, op, extra, way, two_threads, poison
):
    (n, height, width), groups, size, count = WAYS[way]
    x = feature_map(n, groups * size[0] * size[1], height, width, layout=layout, device=device)
    rois = proper(rois_for(n, count, float(max(height, width))))
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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS)
def test_pixels_outside_a_bin_do_not_leak_in(isa, device, layout, op, extra):
    x = torch.full((1, 2, 12, 40), math.inf, device=device)
    x[:, 0, 3:8, 9:15] = 1.0
    x[:, 1, 3:8, 13:19] = 2.0
    x = x.contiguous(memory_format=layout)
    rois = torch.tensor([[0.0, 10.6, 4.6, 17.4, 6.6]], device=device)
    pooled = getattr(detops, op)(x, rois, (1, 2), 1.0, *extra)
    torch.testing.assert_close(pooled, torch.tensor([[[[1.0, 2.0]]]], device=device))
    grad = torch.full((1, 1, 1, 2), math.inf, device=device)
    args = (1.0, 1, 2, 1, 2, 12, 40, *extra)
    spread = getattr(_C, f"{op}_backward")(grad, rois, *args)
    assert (spread[:, :, :3] == 0).all() and (spread[:, :, :, 20:] == 0).all()
    assert not spread.isnan().any() and spread.isinf().any()


@pytest.mark.parametrize(("op", "extra"), OPS[:1] + OPS[3:])
def test_list_and_module_match_op(device, op, extra):
    x = feature_map(3, 12, 9, 9, device=device)
    boxes = [rois_for(1, n, 9.0)[:, 1:].to(device) for n in (2, 0, 3)]
    index = torch.tensor([0.0, 0, 2, 2, 2], device=device)
    rois = torch.cat([index[:, None], torch.cat(boxes)], 1)
    call = getattr(detops, op)
    expected = call(x, rois, (2, 3), 0.5, *extra)
    assert torch.equal(call(x, boxes, (2, 3), 0.5, *extra), expected)
    kind = detops.PSRoIAlign if op == "ps_roi_align" else detops.PSRoIPool
    module = kind((2, 3), 0.5, *extra)
    assert torch.equal(module(x, boxes), expected)
    assert repr(module).startswith(f"{kind.__name__}(output_size=(2, 3), spatial_scale=0.5")
    assert torch.equal(call(x, rois.double(), (2, 3), 0.5, *extra), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert call(x, rois, 2).dtype == torch.float32


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS[1:])
def test_ps_roi_ops_accept_strided_tensors(device, layout, op, extra):
    x = feature_map(4, 24, 8, 40, layout=layout, device=device).detach()[::2, ::2, :, 1::2]
    rois = rois_for(2, 6, 9.0).to(device).repeat(1, 2)[:, :5]
    call = getattr(detops, op)
    expected = call(x.contiguous(), rois.contiguous(), 2, 1.0, *extra)
    assert torch.equal(call(x, rois, 2, 1.0, *extra), expected)
    grad = torch.randn(2, 2, 3, 6, device=device).permute(3, 2, 0, 1)
    backward, args = getattr(_C, f"{op}_backward"), (rois, 1.0, 2, 2, 2, 12, 8, 20, *extra)
    assert torch.equal(backward(grad, *args), backward(grad.contiguous(), *args))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS)
def test_ps_roi_ops_pass_gradcheck(device, layout, op, extra):
    x = feature_map(2, 4, 4, 5, layout=layout, dtype=torch.double, device=device)
    rois = rois_for(2, 4, 8.0, torch.double).to(device)

    def call(x):
        return getattr(detops, op)(x, rois, (2, 1), 0.7, *extra)

    assert gradcheck(call, (x,))
    assert gradgradcheck(call, (x,))


@pytest.mark.parametrize(("op", "extra"), OPS[:1] + OPS[3:])
def test_vmap_and_func_grad_match_loop(op, extra):
    x = torch.randn(3, 2, 4, 6, 5)
    rois = torch.stack([rois_for(2, 4, 8.0)] * 3) + torch.tensor([0, 0.1, 0.2, 0.3, 0.4])
    rois[:, :, 0] = rois[:, :, 0].floor()

    def pool(x, rois):
        return getattr(detops, op)(x, rois, 2, 1.0, *extra)

    for dims in ((0, 0), (0, None), (None, 0)):
        args = [a if d == 0 else a[0] for a, d in zip((x, rois), dims, strict=True)]
        each = [[a[i] if d == 0 else a for a, d in zip(args, dims, strict=True)] for i in range(3)]
        expected = torch.stack([pool(*e) for e in each])
        torch.testing.assert_close(torch.vmap(pool, in_dims=dims)(*args), expected)
    gradient = torch.func.grad(lambda x, rois: pool(x, rois).square().sum())
    expected = torch.stack([gradient(x[i], rois[i]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(gradient)(x, rois), expected)


@pytest.mark.parametrize("index", [2, -1, 1e6, math.nan, math.inf])
@pytest.mark.parametrize(("op", "extra"), OPS[:1] + OPS[3:])
def test_batch_index_out_of_range_raises_or_pools_zero(
    device, values_are_checked, index, op, extra
):
    x = feature_map(2, 4, 5, 5, device=device).detach()
    rois = rois_for(2, 3, 5.0).to(device)
    rois[1, 0] = index
    grad = torch.ones(3, 1, 2, 2, device=device)
    backward, args = getattr(_C, f"{op}_backward"), (1.0, 2, 2, 2, 4, 5, 5, *extra)
    if values_are_checked:
        with pytest.raises(RuntimeError, match=rf"detops.{op}: boxes\[1, 0\] is a batch index"):
            getattr(detops, op)(x, rois, 2)
        with pytest.raises(RuntimeError, match=rf"{op}_backward: boxes\[1, 0\] is a batch index"):
            backward(grad, rois, *args)
    else:
        assert (getattr(detops, op)(x, rois, 2)[1] == 0).all()
        expected = backward(grad[:2], rois[[0, 2]], *args)
        assert torch.equal(backward(grad, rois, *args), expected)


ODD_BOXES = {
    "nan": [math.nan, 0, 5, 5],
    "infinite": [0, 0, math.inf, 5],
    "both infinite": [-math.inf, -math.inf, math.inf, math.inf],
    "billion": [-1e9, -1e9, 1e9, 1e9],
    "1e30": [-1e30, -1e30, 1e30, 1e30],
    "far away": [1e9, 1e9, 1e9 + 64, 1e9 + 64],
    "inverted": [9, 9, 2, 2],
}


@pytest.mark.parametrize("box", ODD_BOXES.values(), ids=ODD_BOXES.keys())
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), [*OPS, ("ps_roi_align", (4096,))])
def test_odd_boxes_pool_to_finite_values(device, box, layout, op, extra):
    x = feature_map(1, 18, 16, 16, layout=layout, device=device)
    rois = torch.tensor([[0.0, *box], [0, 1, 1, 9, 9]], device=device)
    pooled = getattr(detops, op)(x, rois, 3, 1.0, *extra)
    assert pooled.isfinite().all()
    alone = getattr(detops, op)(x, rois[1:], 3, 1.0, *extra)
    assert torch.equal(pooled[1:], alone) and (alone != 0).all()
    (grad,) = torch.autograd.grad(pooled.sum(), x)
    assert grad.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "count"), [((2, 12, 4, 4), 0), ((0, 12, 4, 4), 0), ((2, 0, 4, 4), 3)]
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS[1:])
def test_empty_input_gives_empty_output_and_zero_gradient(device, shape, count, layout, op, extra):
    x = feature_map(*shape, layout=layout, device=device)
    rois = torch.zeros(count, 5, device=device)
    pooled = getattr(detops, op)(x, rois, 2, 1.0, *extra)
    assert pooled.shape == (count, shape[1] // 4, 2, 2)
    pooled.sum().backward()
    assert x.grad.shape == x.shape and (x.grad == 0).all()


X, R, G = torch.zeros(1, 8, 4, 4), torch.zeros(3, 5), torch.zeros(3, 2, 2, 2)


@pytest.mark.parametrize("op", ["ps_roi_align", "ps_roi_pool"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, b: f(X, R[:, :4], 2), r": boxes must be \[K, 5\], got \[3, 4\]"),
        (lambda f, b: f(X[0], R, 2), r": input must be \[N, planes, H, W\]"),
        (lambda f, b: f(X.long(), R, 2), ": input must be float32"),
        (lambda f, b: f(X, R.long(), 2), ": boxes must be float32"),
        (lambda f, b: f(X, R, 0), ": output_size must be at least 1 x 1"),
        (lambda f, b: f(X, R, (2, -1)), ": output_size must be.*2 x -1"),
        (lambda f, b: f(X, R, 3),
         ": input must have a multiple of output_size's 3 x 3 channels, got 8"),
        (lambda f, b: f(X, R, 2**40), ": pooled_height must be at most 2147483647"),
        (lambda f, b: f(X, R, 2, math.nan), ": spatial_scale.*got nan"),
        (lambda f, b: f(X, R.to("meta"), 2), ": boxes must be on the"),
        (lambda f, b: f(X[:, :, :0], R, 2), ": input must be .*H >= 1, W >= 1"),
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


def test_too_many_samples_raise():
    with pytest.raises(RuntimeError, match="detops.ps_roi_align: sampling_ratio must be at most"):
        detops.ps_roi_align(X, R, 2, 1.0, 10**6)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("op", "extra"), OPS[:1] + OPS[3:])
def test_ps_roi_ops_pass_opcheck(layout, op, extra):
    x, rois = feature_map(2, 12, 6, 6, layout=layout).detach(), rois_for(2, 3, 6.0)
    forward = getattr(torch.ops.detops, f"{op}_forward").default
    torch.library.opcheck(forward, (x, rois, 0.5, 2, 3, *extra))
    grad = torch.randn(3, 2, 2, 3).contiguous(memory_format=layout)
    backward = getattr(torch.ops.detops, f"{op}_backward").default
    torch.library.opcheck(backward, (grad, rois, 0.5, 2, 3, 2, 12, 6, 6, *extra))


@pytest.mark.slow
@pytest.mark.parametrize(("op", "extra"), OPS[:1] + OPS[3:])
def test_compiled_ps_roi_ops_match_eager(op, extra):
    def call(x, rois):
        return getattr(detops, op)(x, rois, (3, 2), 0.5, *extra).square().sum()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for layout in LAYOUTS:
        for size in (8, 11):
            x, rois = feature_map(2, 12, size, size + 1, layout=layout), rois_for(2, size)
            torch.testing.assert_close(compiled(x, rois), call(x, rois))
            (ours,) = torch.autograd.grad(compiled(x, rois), x)
            (expected,) = torch.autograd.grad(call(x, rois), x)
            torch.testing.assert_close(ours, expected)


@pytest.mark.slow
@settings(max_examples=150)
@given(
    st.lists(st.tuples(*[st.floats(width=32)] * 4), min_size=1, max_size=4),
    st.sampled_from(OPS),
    st.sampled_from([1.0, 0.5, 1e-3, 1e3]),
    st.sampled_from([5, 40]),
    st.booleans(),
)
def test_any_boxes_pool_to_finite_values(boxes, op, scale, width, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x = feature_map(1, 12, 5, width, layout=layout)
    rois = torch.tensor([[0.0, *b] for b in boxes])
    pooled = getattr(detops, op[0])(x, rois, (3, 2), scale, *op[1])
    assert pooled.isfinite().all() and pooled.abs().max() <= x.abs().max() * (1 + 1e-5)
    if op[0] == "ps_roi_pool":
        expected = reference.ps_roi_pool(x, rois, (3, 2), scale)
        torch.testing.assert_close(pooled.double(), expected, atol=2e-6, rtol=0)
    (grad,) = torch.autograd.grad(pooled.sum(), x)
    assert grad.isfinite().all()
