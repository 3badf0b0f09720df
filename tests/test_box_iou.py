import math

import pytest
import reference
import torch
import torchvision
from torch.autograd import gradcheck

import detops


def grids(dtype=torch.float32):
    """Boxes that meet, touch, coincide and miss each other, and some that are inverted."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 8, (40, 2), generator=generator)
    side = torch.randint(-1, 5, (40, 2), generator=generator)
    return torch.cat([corner, corner + side], 1).to(dtype)


def test_equals_torchvision(device):
    a = reference.random_boxes(50).to(device)
    b = reference.random_boxes(70).to(device)
    torch.testing.assert_close(detops.box_iou(a, b), torchvision.ops.box_iou(a, b))
    c = grids().to(device)
    theirs = torchvision.ops.box_iou(c, c)
    defined = theirs.isfinite()
    torch.testing.assert_close(detops.box_iou(c, c)[defined], theirs[defined])


def test_a_ratio_without_value_is_zero(device):
    odd = torch.tensor(
        [[1.0, 1, 1, 1], [math.nan, 0, 2, 2], [0, 0, math.inf, 2], [-1e30, -1e30, 1e30, 1e30]],
        device=device,
        requires_grad=True,
    )
    iou = detops.box_iou(odd, odd)
    assert (iou == 0).all()
    (grad,) = torch.autograd.grad(iou.sum(), odd)
    assert grad.isfinite().all()


def test_gradients(device):
    a = reference.random_boxes(4, dtype=torch.double).to(device).requires_grad_()
    b = reference.random_boxes(5, dtype=torch.double).to(device).requires_grad_()
    assert gradcheck(detops.box_iou, (a, b))


def test_gradient_at_ties_is_torchvisions():
    boxes = grids(torch.double)
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
    a, b = boxes.clone().requires_grad_(), boxes.flip(0).requires_grad_()
    theirs = torchvision.ops.box_iou(a, b)
    weight = torch.rand_like(theirs)
    ours = torch.autograd.grad(detops.box_iou(a, b), (a, b), weight)
    for x, y in zip(ours, torch.autograd.grad(theirs, (a, b), weight), strict=True):
        torch.testing.assert_close(x, y)


def test_same_bits_for_any_threads(two_threads):
    a, b = reference.random_boxes(300).requires_grad_(), reference.random_boxes(500)

    def both():
        iou = detops.box_iou(a, b)
        return iou, *torch.autograd.grad(iou.square().sum(), a)

    for x, y in zip(*two_threads(both), strict=True):
        assert torch.equal(x, y)


def test_dtypes(device):
    a = reference.random_boxes(20).to(device)
    for dtype in (torch.float16, torch.bfloat16):
        half = a.to(dtype)
        iou = detops.box_iou(half, half)
        assert iou.dtype == torch.float32
        assert torch.equal(iou, detops.box_iou(half.float(), half.float()))
    assert detops.box_iou(a, a.double()).dtype == torch.float64
    half = a.half().requires_grad_()
    detops.box_iou(half, a).sum().backward()
    assert half.grad.dtype == torch.float16


@pytest.mark.parametrize("fmt", ["xywh", "cxcywh"])
def test_fmt(fmt):
    a = reference.random_boxes(20)
    other = detops.box_convert(a, "xyxy", fmt)
    torch.testing.assert_close(detops.box_iou(other, other, fmt=fmt), detops.box_iou(a, a))


def test_layouts_and_empty(device):
    a = reference.random_boxes(20).to(device)
    strided = a.t().contiguous().t()
    assert torch.equal(detops.box_iou(strided, a[::2]), detops.box_iou(a, a[::2].contiguous()))
    empty = torch.zeros(0, 4, device=device, requires_grad=True)
    iou = detops.box_iou(empty, a)
    assert iou.shape == (0, 20)
    iou.sum().backward()
    assert empty.grad.shape == (0, 4)


def test_opcheck_compile_vmap():
    a, b = reference.random_boxes(4), reference.random_boxes(6)
    torch.library.opcheck(torch.ops.detops.box_iou_forward.default, (a, b))
    torch.library.opcheck(torch.ops.detops.box_iou_backward.default, (torch.rand(4, 6), a, b))
    compiled = torch.compile(detops.box_iou, fullgraph=True, dynamic=True, backend="aot_eager")
    leaf = a.clone().requires_grad_()
    (ours,) = torch.autograd.grad(compiled(leaf, b).square().sum(), leaf)
    (expected,) = torch.autograd.grad(detops.box_iou(leaf, b).square().sum(), leaf)
    torch.testing.assert_close(ours, expected)
    stacked = torch.stack([a, a + 3])
    expected = torch.stack([detops.box_iou(a, b), detops.box_iou(a + 3, b)])
    assert torch.equal(torch.vmap(detops.box_iou, in_dims=(0, None))(stacked, b), expected)


def test_autocast_computes_in_float32():
    a = reference.random_boxes(10).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.box_iou(a, a), detops.box_iou(a.float(), a.float()))


B = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.box_iou(B[:, :3], B), r"boxes1 must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.box_iou(B, B[0]), r"boxes2 must be \[N, 4\], got \[4\]"),
        (lambda: detops.box_iou(B, B.long()), "boxes2 must be float32.*got Long"),
        (lambda: detops.box_iou(B, B.to("meta")), "boxes2 must be on the device of boxes1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.box_iou: {message}"):
        call()
