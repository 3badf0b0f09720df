import math

import pytest
import reference
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

import detops

KINDS = {
    "generalized_box_iou_loss": "giou",
    "distance_box_iou_loss": "diou",
    "complete_box_iou_loss": "ciou",
}


def both(name):
    return getattr(detops, name), getattr(torchvision.ops, name)


def pairs(count, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (
        reference.random_boxes(count, 30.0, generator, dtype),
        reference.random_boxes(count, 30.0, generator, dtype),
    )


def grids(dtype):
    """Returns boxes that overlap, touch, coincide with, contain or miss each other."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 5, (300, 2), generator=generator)
    side = torch.randint(1, 5, (300, 2), generator=generator)
    boxes = torch.cat([corner, corner + side], 1).to(dtype)
    return boxes, boxes.roll(1, 0)


def with_gradients(loss, a, b, weight, **options):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    value = loss(a, b, **options)
    return value, *torch.autograd.grad(value, (a, b), weight.to(value))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 5, 64, 203])
def test_losses_match_torchvision(device, isa, name, dtype, count):
    ours, theirs = both(name)
    a, b = pairs(count, dtype)
    a[0] = b[0]
    weight = torch.rand(count)
    results = with_gradients(ours, a.to(device), b.to(device), weight.to(device))
    # torchvision runs in float64, so that only detops rounds.
    expected = with_gradients(theirs, a.double(), b.double(), weight)
    for x, y in zip(results, expected, strict=True):
        assert x.dtype == dtype
        if dtype == torch.float64:
            torch.testing.assert_close(x.cpu(), y, rtol=1e-11, atol=1e-13)
        else:
            torch.testing.assert_close(x.cpu().double(), y, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", KINDS)
def test_ties_and_touching_boxes_match_torchvision(device, isa, name):
    ours, theirs = both(name)
    a, b = grids(torch.float64)
    weight = torch.rand(len(a), dtype=torch.float64)
    results = with_gradients(ours, a.to(device), b.to(device), weight.to(device))
    for x, y in zip(results, with_gradients(theirs, a, b, weight), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("eps", [1e-3, 1.0])
def test_eps_acts_as_in_torchvision(device, isa, name, eps):
    ours, theirs = both(name)
    a, b = grids(torch.float64)
    weight = torch.rand(len(a), dtype=torch.float64)
    results = with_gradients(ours, a.to(device), b.to(device), weight.to(device), eps=eps)
    for x, y in zip(results, with_gradients(theirs, a, b, weight, eps=eps), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", KINDS)
def test_inverted_boxes_match_torchvision(device, isa, name):
    """Predictions may be inverted early in training, and gradients must correct them."""
    ours, theirs = both(name)
    a, b = pairs(200, torch.float64)
    a[:70] = a[:70][:, [2, 1, 0, 3]]
    a[70:140] = a[70:140][:, [2, 3, 0, 1]]
    b[:20] = b[:20][:, [0, 3, 2, 1]]
    weight = torch.rand(len(a), dtype=torch.float64)
    results = with_gradients(ours, a.to(device), b.to(device), weight.to(device))
    for x, y in zip(results, with_gradients(theirs, a, b, weight), strict=True):
        torch.testing.assert_close(x.cpu(), y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
def test_reductions_match_torchvision(device, name):
    ours, theirs = both(name)
    a, b = (x.to(device) for x in pairs(17))
    for reduction in ("none", "mean", "sum"):
        expected = theirs(a.cpu(), b.cpu(), reduction)
        torch.testing.assert_close(ours(a, b, reduction).cpu(), expected)
        leaf = torch.zeros(0, 4, device=device, requires_grad=True)
        value = ours(leaf, leaf, reduction)
        assert value.shape == theirs(leaf, leaf, reduction).shape
        assert (value == 0).all()
        value.sum().backward()
        assert leaf.grad.shape == (0, 4)
    message = "box_iou_loss: reduction must be none, mean or sum, got median"
    with pytest.raises(ValueError, match=message):
        ours(a, b, "median")


@pytest.mark.parametrize("name", KINDS)
def test_losses_pass_gradcheck(device, name):
    a, b = (x.to(device).requires_grad_() for x in pairs(6, torch.float64))
    if name != "complete_box_iou_loss":  # a factor is constant here, but not in finite differences
        assert gradcheck(both(name)[0], (a, b))
    with pytest.raises(RuntimeError, match="box_iou_loss_backward is not implemented"):
        (grad,) = torch.autograd.grad(both(name)[0](a, b).sum(), a, create_graph=True)
        grad.sum().backward()


@pytest.mark.parametrize("name", KINDS)
def test_losses_promote_dtypes(device, isa, name):
    ours, theirs = both(name)
    a, b = (x.to(device) for x in pairs(20))
    for dtype in (torch.float16, torch.bfloat16):
        x, y = a.to(dtype), b.to(dtype)
        loss = ours(x, y)
        assert loss.dtype == theirs(x, y).dtype == torch.float32
        assert torch.equal(loss, ours(x.float(), y.float()))
        leaf = x.clone().requires_grad_()
        ours(leaf, y).sum().backward()
        wide = x.float().requires_grad_()
        ours(wide, y).sum().backward()
        assert torch.equal(leaf.grad, wide.grad.to(dtype))
    assert ours(a, b.double()).dtype == torch.float64
    # A product of half precision sides would overflow.
    large = torch.tensor([[0.0, 0, 6e4, 6e4]], device=device).half()
    assert ours(large, large).item() == pytest.approx(0)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_boxes_without_area_give_finite_losses(device, isa, name, dtype):
    ours, theirs = both(name)
    point, flat, thin = [3.0, 3, 3, 3], [1.0, 2, 5, 2], [2.0, 1, 2, 5]
    boxes = torch.tensor([point, flat, thin, [1, 1, 4, 4]], dtype=dtype, device=device)
    a, b = boxes.repeat(4, 1), boxes.repeat_interleave(4, 0)
    results = with_gradients(ours, a, b, torch.ones(16, device=device))
    assert all(x.isfinite().all() for x in results)
    expected = with_gradients(theirs, a.cpu(), b.cpu(), torch.ones(16))
    for x, y in zip(results, expected, strict=True):
        torch.testing.assert_close(x.cpu()[y.isfinite()], y[y.isfinite()], rtol=1e-5, atol=1e-6)
    if name != "complete_box_iou_loss":
        assert all(y.isfinite().all() for y in expected)


SIDES = [0.0, 1.0, 2.0, 7.0, 1e-30, 1e-20, 1e15, 1e18, -1e18, -1e30, 1e30]


@settings(max_examples=100)
@given(
    st.lists(st.lists(st.sampled_from(SIDES), min_size=8, max_size=8), min_size=1, max_size=40),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([1e-7, 0.0]),
)
def test_finite_boxes_give_finite_results(sides, name, eps):
    a, b = torch.tensor(sides).split(4, 1)
    for isa in ("baseline", "auto"):
        detops._C.set_cpu_isa(isa)
        for result in with_gradients(both(name)[0], a, b, torch.ones(len(a)), eps=eps):
            assert result.isfinite().all()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nonfinite_boxes_give_nan_losses(device, isa, name, value):
    a, b = (x.to(device) for x in pairs(8))
    for i in range(8):
        (a if i < 4 else b)[i, i % 4] = value
    for result in with_gradients(both(name)[0], a, b, torch.ones(8, device=device)):
        assert result.isnan().all()
    clean = pairs(8)
    clean[0][3, 0] = value
    loss = both(name)[0](clean[0].to(device), clean[1].to(device)).cpu()
    assert loss.isnan().tolist() == [False] * 3 + [True] + [False] * 4


@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_threads_gives_the_same_bits(name, two_threads):
    a, b = pairs(40_000)
    weight = torch.rand(40_000)
    for x, y in zip(*two_threads(lambda: with_gradients(both(name)[0], a, b, weight)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("name", KINDS)
def test_losses_accept_any_layout(device, name):
    loss = both(name)[0]
    a, b = (x.to(device) for x in pairs(24))
    expected = loss(a, b)
    assert torch.equal(loss(a.t().contiguous().t(), b), expected)
    assert torch.equal(loss(a[::2], b[::2]), expected[::2])
    assert torch.equal(loss(a.view(2, 3, 4, 4), b.view(2, 3, 4, 4)), expected.view(2, 3, 4))
    assert torch.equal(loss(a[0], b[0]), expected[0])
    leaf = a.clone().requires_grad_()
    loss(leaf, b).sum().backward()  # an expanded gradient
    other = a.clone().requires_grad_()
    loss(other, b).backward(torch.ones(24, device=device))
    assert torch.equal(leaf.grad, other.grad)


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_losses_pass_opcheck_compile_and_vmap(name):
    loss, kind = both(name)[0], KINDS[name]
    a, b = pairs(6)
    torch.library.opcheck(torch.ops.detops.box_iou_loss_forward.default, (a, b, kind, 1e-7))
    torch.library.opcheck(
        torch.ops.detops.box_iou_loss_backward.default, (torch.rand(6), a, b, kind, 1e-7)
    )
    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    leaf = a.clone().requires_grad_()
    (ours,) = torch.autograd.grad(compiled(leaf, b, reduction="mean"), leaf)
    (expected,) = torch.autograd.grad(loss(leaf, b, reduction="mean"), leaf)
    torch.testing.assert_close(ours, expected)
    stacked = torch.stack([a, a + 3], 1)
    batched = torch.vmap(loss, in_dims=(1, None))(stacked, b)
    assert torch.equal(batched, torch.stack([loss(a, b), loss(a + 3, b)]))
    each = torch.vmap(torch.func.grad(loss))(a, b)
    torch.testing.assert_close(each, torch.func.grad(lambda a: loss(a, b).sum())(a))


def test_autocast_computes_in_float32():
    a, b = (x.bfloat16() for x in pairs(10))
    with torch.autocast("cpu", torch.bfloat16):
        loss = detops.generalized_box_iou_loss(a, b)
    assert torch.equal(loss, detops.generalized_box_iou_loss(a.float(), b.float()))


B = torch.rand(3, 4)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ((B[:, :3], B), r"boxes1 must be \[..., 4\], got \[3, 3\]"),
        ((torch.tensor(1.0), B), r"boxes1 must be \[..., 4\], got \[\]"),
        ((B, B[:2]), r"boxes2 must be \[3, 4\], got \[2, 4\]"),
        ((B, B[:, :1]), r"boxes2 must be \[3, 4\], got \[3, 1\]"),
        ((B > 0, B), "boxes1 must be float32.*got bool"),
        ((B, B > 0), "boxes2 must be float32.*got bool"),
        ((B, B.to("meta")), "boxes2 must be on the device of boxes1"),
    ],
)
def test_losses_reject_bad_input(device, name, boxes, message):
    with pytest.raises(RuntimeError, match=f"detops.{name}: {message}"):
        both(name)[0](*(b if b.is_meta else b.to(device) for b in boxes))


def test_unknown_kind_raises():
    with pytest.raises(RuntimeError, match="kind must be iou, giou, diou or ciou, got diagonal"):
        detops._C.box_iou_loss_forward(B, B, "diagonal")
