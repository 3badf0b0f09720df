"""box_iou and related overlaps with ``mode`` and ``aligned``."""

import math
from functools import partial

import pytest
import reference
import torch
from test_box_iou import grids
from torch.autograd import gradcheck

import detops

KIN = ("generalized_box_iou", "distance_box_iou", "complete_box_iou")
ALL = {
    "iou": detops.box_iou,
    "iof": partial(detops.box_iou, mode="iof"),
    **{name: getattr(detops, name) for name in KIN},
}


def odd_boxes(**options):
    far, huge = math.inf, 1e30
    rows = [
        [1, 1, 1, 1],  # a point
        [0, 0, 0, 5],  # a line
        [math.nan, 0, 2, 2],
        [0, 0, far, 2],
        [-huge, -huge, huge, huge],
        [3, 3, 1, 1],  # inverted on both axes: a positive area
        [3, 1, 1, 3],
        [0, 0, 4, 4],
    ]
    return torch.tensor(rows, dtype=torch.float, **options)


@pytest.mark.parametrize("mode", ["iou", "iof"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_overlaps_match_reference(mode, dtype, isa):
    for n, m in ((1, 1), (3, 17), (40, 33)):
        a, b = reference.random_boxes(n).to(dtype), reference.random_boxes(m).to(dtype)
        a[0] = b[0]
        ours = detops.box_iou(a, b, mode=mode)
        assert ours.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        expected = reference.overlaps(a, b, mode)
        torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-7)
    c = grids(dtype)
    expected = reference.overlaps(c, c, mode)
    ours = detops.box_iou(c, c, mode=mode)
    torch.testing.assert_close(ours.double(), expected, rtol=1e-6, atol=1e-7)
    pairs = detops.box_iou(c, c.flip(0), mode=mode, aligned=True)
    torch.testing.assert_close(pairs.double(), expected.flip(1).diagonal(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("count", [1, 5, 63, 64, 65, 300])
def test_aligned_overlaps_are_the_matrix_diagonal(name, count, isa, device):
    a, b = reference.random_boxes(count).to(device), reference.random_boxes(count).to(device)
    b = (a + b / 10).requires_grad_()
    a.requires_grad_()
    weight = torch.linspace(-1, 1, count, device=device)
    found, expected = ALL[name](a, b, aligned=True), ALL[name](a, b).diagonal()
    if name == "complete_box_iou":  # its arctangents differ
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(found, expected)
    ours = torch.autograd.grad(found, (a, b), weight)
    for x, y in zip(ours, torch.autograd.grad(expected, (a, b), weight), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


def test_iof_divides_by_area_of_first_box():
    inner, outer = torch.tensor([[2.0, 2, 4, 4]]), torch.tensor([[0.0, 0, 10, 10]])
    assert detops.box_iou(inner, outer, mode="iof") == 1
    assert detops.box_iou(outer, inner, mode="iof") == torch.tensor(0.04)
    assert detops.box_iou(inner, outer, mode="iof", aligned=True) == 1


@pytest.mark.parametrize("name", [n for n in ALL if n != "complete_box_iou"])
def test_overlaps_pass_gradcheck(name, device):
    a = reference.random_boxes(4, dtype=torch.double).to(device).requires_grad_()
    b = reference.random_boxes(5, dtype=torch.double).to(device).requires_grad_()
    assert gradcheck(ALL[name], (a, b))
    near = (a.detach() + 3 * torch.rand_like(a)).requires_grad_()
    assert gradcheck(partial(ALL[name], aligned=True), (a, near))


def test_iof_gradient_at_ties_matches_pytorch():
    boxes = grids(torch.double)
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
    a, b = boxes.clone().requires_grad_(), boxes.flip(0).requires_grad_()
    low = torch.maximum(a[:, None, :2], b[:, :2])
    meet = (torch.minimum(a[:, None, 2:], b[:, 2:]) - low).clamp(min=0).prod(2)
    plain = meet / (a[:, 2:] - a[:, :2]).prod(1)[:, None]
    weight = torch.rand_like(plain) * reference.not_just_touching(a, b)
    ours = torch.autograd.grad(detops.box_iou(a, b, mode="iof"), (a, b), weight)
    for x, y in zip(ours, torch.autograd.grad(plain, (a, b), weight), strict=True):
        torch.testing.assert_close(x, y)


@pytest.mark.parametrize("name", ALL)
def test_odd_boxes_give_finite_overlaps(name, device):
    first = odd_boxes(device=device, requires_grad=True)
    for shift in range(len(first)):
        second = odd_boxes(device=device).roll(shift, 0).requires_grad_()
        found = ALL[name](first, second, aligned=True)
        assert found.isfinite().all()
        torch.testing.assert_close(found, ALL[name](first, second).diagonal())
        for grad in torch.autograd.grad(found.sum(), (first, second)):
            assert grad.isfinite().all()
    found = ALL[name](first, first)
    (grad,) = torch.autograd.grad(found.sum(), first)
    assert found.isfinite().all() and grad.isfinite().all()


def test_iof_of_box_without_area_is_zero(device):
    odd = odd_boxes(device=device)
    iof = detops.box_iou(odd, odd, mode="iof")
    assert (iof[:5] == 0).all()
    # An inverted box overlaps no other, whatever the sign of its area.
    assert (iof[5:7] == 0).all() and (iof[:, 5:7] == 0).all()
    assert iof[7, 7] == 1
    assert iof[7, 4] == 1  # inside a box whose area overflows float32


def test_aligned_mode_accepts_any_layout_shape_and_empty_boxes(device):
    a = reference.random_boxes(24).to(device)
    strided = a.t().contiguous().t()
    expected = detops.box_iou(a, a + 3, aligned=True)
    assert torch.equal(detops.box_iou(strided, strided + 3, aligned=True), expected)
    batch = a.view(2, 3, 4, 4)
    assert torch.equal(detops.box_iou(batch, batch + 3, aligned=True), expected.view(2, 3, 4))
    one = detops.box_iou(batch, a[0], aligned=True)
    assert torch.equal(one, detops.box_iou(a, a[:1])[:, 0].view(2, 3, 4))
    assert detops.box_iou(a[0], a[1], aligned=True).shape == ()
    leaf = a[:0].clone().requires_grad_()
    none = detops.box_iou(leaf, a[:0], mode="iof", aligned=True)
    assert none.shape == (0,)
    none.sum().backward()
    assert leaf.grad.shape == (0, 4)
    assert detops.box_iou(a[:0], a, mode="iof").shape == (0, 24)


def test_gradient_of_broadcast_boxes_is_summed():
    a = reference.random_boxes(6)
    one = a[:1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(detops.box_iou(a, one, aligned=True).sum(), one)
    (expected,) = torch.autograd.grad(detops.box_iou(a, one).sum(), one)
    torch.testing.assert_close(grad, expected)


def test_overlaps_accept_integers_formats_and_mixed_dtypes():
    whole = torch.tensor([[0, 0, 10, 10], [2, 2, 12, 14], [2**31, 0, 2**31 + 9, 9]])
    other = whole + 1
    for mode in ("iou", "iof"):
        found = detops.box_iou(whole, other, mode=mode, aligned=True)
        expected = reference.overlaps(whole, other, mode).diagonal()
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected.float())
        a, b = reference.random_boxes(20), reference.random_boxes(20)
        for fmt in ("xywh", "cxcywh"):
            given = [detops.box_convert(x, "xyxy", fmt) for x in (a, b)]
            found = detops.box_iou(*given, fmt, mode=mode, aligned=True)
            torch.testing.assert_close(found, detops.box_iou(a, b, mode=mode, aligned=True))
        assert detops.box_iou(a, b.double(), mode=mode, aligned=True).dtype == torch.float64
    half = a.half().requires_grad_()
    detops.box_iou(half, b, aligned=True).sum().backward()
    assert half.grad.dtype == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        narrow = a.bfloat16()
        assert torch.equal(
            detops.box_iou(narrow, narrow + 1, aligned=True),
            detops.box_iou(narrow.float(), (narrow + 1).float(), aligned=True),
        )


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    a = reference.random_boxes(20_000).requires_grad_()

    def both():
        found = detops.box_iou(a, a.flip(0), mode="iof", aligned=True)
        return found, *torch.autograd.grad(found.square().sum(), a)

    for x, y in zip(*two_threads(both), strict=True):
        assert torch.equal(x, y)


@pytest.mark.slow
def test_overlaps_pass_opcheck_compile_and_vmap():
    a, b = reference.random_boxes(6), reference.random_boxes(6) + 1
    ops = torch.ops.detops
    for kind in ("iou", "iof", "giou", "diou", "ciou"):
        torch.library.opcheck(ops.box_iou_aligned_forward.default, (a, b, kind, 1e-7))
        grad = torch.rand(6)
        torch.library.opcheck(ops.box_iou_aligned_backward.default, (grad, a, b, kind, 1e-7))
    torch.library.opcheck(ops.box_iou_forward.default, (a, b, "iof"))
    for options in (dict(mode="iof"), dict(aligned=True)):
        function = partial(detops.box_iou, **options)
        compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
        leaf = a.clone().requires_grad_()
        (ours,) = torch.autograd.grad(compiled(leaf, b).square().sum(), leaf)
        (expected,) = torch.autograd.grad(function(leaf, b).square().sum(), leaf)
        torch.testing.assert_close(ours, expected)
        stacked = torch.stack([a, a + 3])
        expected = torch.stack([function(x, b) for x in stacked])
        assert torch.equal(torch.vmap(function, in_dims=(0, None))(stacked, b), expected)


def test_op_accepts_arguments_of_the_function():
    a, b = reference.random_boxes(6), reference.random_boxes(6)
    found = torch.ops.detops.box_iou(a, b, mode="iof", aligned=True)
    assert torch.equal(found, detops.box_iou(a, b, mode="iof", aligned=True))
    for name in KIN:
        found = getattr(torch.ops.detops, name)(a, b, aligned=True)
        assert torch.equal(found, ALL[name](a, b, aligned=True))


B = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(B, B[:2], aligned=True), r"boxes2 must be \[3, 4\], got \[2, 4\]"),
        (lambda f: f(B[:, :3], B, aligned=True), r"boxes1 must be \[\.\.\., 4\], got \[3, 3\]"),
        (lambda f: f(B, B > 0, aligned=True), "boxes2 must be float32.*got bool"),
        (
            lambda f: f(B, B.to("meta"), aligned=True),
            "boxes2 must be on the device of boxes1",
        ),
    ],
)
@pytest.mark.parametrize("name", ALL)
def test_aligned_overlaps_reject_bad_input(call, message, name):
    op = "box_iou" if name.startswith("io") else name
    with pytest.raises(RuntimeError, match=f"detops.{op}: {message}"):
        call(ALL[name])


def test_unknown_mode_raises():
    with pytest.raises(ValueError, match="detops.box_iou: mode must be iou or iof, got giou"):
        detops.box_iou(B, B, mode="giou")
