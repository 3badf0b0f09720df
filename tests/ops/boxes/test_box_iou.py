"""Overlaps of upright boxes and their losses. test_overlap_contract.py tests most properties."""

from functools import partial
from itertools import product

import pytest
import reference
import torch
import torchvision
from hypothesis import strategies as st
from overlap_cases import EXTREMES, check_values, each_case

import detops

IOU_VARIANTS = ("generalized_box_iou", "distance_box_iou", "complete_box_iou")
NAMES = ("box_iou", *IOU_VARIANTS)
LOSSES = [f"{name}_loss" for name in IOU_VARIANTS]


def grid(count, sides):
    """Returns boxes with whole coordinates: many share sides or corners, or are equal."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 5, (count, 2), generator=generator)
    return torch.cat([corner, corner + torch.randint(*sides, (count, 2), generator=generator)], 1)


def with_gradients(function, a, b, weight, **options):
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    found = function(a, b, **options)
    return [found.detach(), *torch.autograd.grad(found, (a, b), weight)]


def plain_iof(a, b):
    low = torch.maximum(a[:, None, :2], b[:, :2])
    intersection = (torch.minimum(a[:, None, 2:], b[:, 2:]) - low).clamp(min=0).prod(2)
    return intersection / (a[:, 2:] - a[:, :2]).prod(1)[:, None]


IMPLEMENTATIONS = {
    "box_iou": (detops.box_iou, torchvision.ops.box_iou),
    "iof": (partial(detops.box_iou, mode="iof"), plain_iof),
    "generalized_box_iou": (detops.generalized_box_iou, torchvision.ops.generalized_box_iou),
}
for name, eps in product(IOU_VARIANTS[1:], (1e-7, 1e-3, 1.0)):
    IMPLEMENTATIONS[f"{name}, eps {eps}"] = tuple(
        partial(getattr(ops, name), eps=eps) for ops in (detops, torchvision.ops)
    )


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_overlaps_and_gradients_at_ties_match_torchvision(name, device, isa):
    ours, theirs = IMPLEMENTATIONS[name]
    boxes = grid(60, (1, 5)).double()
    pair = boxes[:40], boxes[30:]
    weight = torch.rand(40, 30, dtype=torch.double) * reference.mask_touching_pairs(*pair)
    found = with_gradients(ours, *(x.to(device) for x in (*pair, weight)))
    for x, y in zip(found, with_gradients(theirs, *pair, weight), strict=True):
        torch.testing.assert_close(x.cpu(), y)


@pytest.mark.parametrize("eps", [1e-7, 1e-3, 1.0])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_tied_and_inverted_boxes_match_torchvision(name, eps, device, isa):
    """Predictions may be inverted early in training, and gradients must correct them."""
    a, b = grid(600, (-3, 6)).double().split(300)
    weight = torch.rand(300, dtype=torch.double)
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    found = with_gradients(ours, *(x.to(device) for x in (a, b, weight)), eps=eps)
    for x, y in zip(found, with_gradients(theirs, a, b, weight, eps=eps), strict=True):
        assert x.isfinite().all() and y.isfinite().sum() > 0.7 * y.numel()
        defined = y.isfinite()
        torch.testing.assert_close(x.cpu()[defined], y[defined], rtol=1e-10, atol=1e-12)


@each_case(lambda case: case.op in LOSSES)
def test_losses_without_eps_are_finite(case):
    def check(a, b):
        found = with_gradients(case.function, a, b, torch.ones_like(a[:, 0]), eps=0.0)
        assert all(x.isfinite().all() for x in found)

    check_values(case, st.sampled_from(EXTREMES), 50, check)


def test_boxes_whose_area_overflows_have_defined_overlaps(device):
    small, huge = torch.tensor([[1.0, 2, 3, 4], [-1e30, -1e30, 1e30, 1e30]], device=device)
    for aligned in (False, True):
        iou = partial(detops.box_iou, aligned=aligned)
        assert iou(huge[None], huge[None]) == 0
        assert iou(small[None], huge[None]) == 0
        assert iou(small[None], huge[None], mode="iof") == 1


@pytest.mark.parametrize("name", NAMES)
def test_overlap_of_equal_points_is_zero(name, device):
    point = torch.ones(1, 4, device=device)
    for aligned in (False, True):
        assert getattr(detops, name)(point, point, aligned=aligned) == 0


@pytest.mark.parametrize("fmt", ["xywh", "cxcywh"])
def test_box_iou_accepts_every_box_format(fmt):
    a, b = reference.random_boxes(20), reference.random_boxes(20)
    converted = [detops.box_convert(x, "xyxy", fmt) for x in (a, b)]
    for options in (dict(), dict(mode="iof"), dict(aligned=True)):
        found = detops.box_iou(*converted, fmt, **options)
        torch.testing.assert_close(found, detops.box_iou(a, b, **options))


def test_aligned_overlaps_accept_integers():
    integers = torch.tensor([[0, 0, 10, 10], [2, 2, 12, 14], [2**31, 0, 2**31 + 9, 9]])
    for mode in ("iou", "iof"):
        found = detops.box_iou(integers, integers + 1, mode=mode, aligned=True)
        assert found.dtype == torch.float32
        expected = reference.overlaps(integers, integers + 1, mode).diagonal()
        torch.testing.assert_close(found, expected.float())


def test_match_boxes_finds_first_best_iou(device, isa, two_threads):
    for n, m in ((0, 3), (5, 1), (30, 17), (200, 100)):
        a, b = reference.random_boxes(n).to(device), reference.random_boxes(m).to(device)
        for boxes1, boxes2 in ((a, b), (a.round(), b.round()), (a.double(), b)):
            expected = detops.box_iou(boxes1, boxes2)
            for best, index in two_threads(lambda: detops.match_boxes(boxes1, boxes2)):  # noqa: B023
                assert torch.equal(best, expected.amax(1))
                # The first of equal IoUs wins.
                first = (expected == best[:, None]).int().argmax(1)
                assert torch.equal(index, first)
    best, index = detops.match_boxes(a, b[:0])
    assert (best == 0).all() and (index == -1).all()
    torch.library.opcheck(torch.ops.detops.match_boxes.default, (a, b))
    with pytest.raises(RuntimeError, match=r"detops.match_boxes: boxes2 must be \[M, 4\]"):
        detops.match_boxes(a, b[0])


@pytest.mark.parametrize("name", NAMES)
def test_batched_boxes_match_loop_over_batches(name):
    op = getattr(detops, name)
    a = reference.random_boxes(24).reshape(2, 3, 4, 4)
    b = reference.random_boxes(15).reshape(3, 5, 4)
    expected = [torch.stack([op(x, y) for x, y in zip(row, b, strict=True)]) for row in a]
    assert torch.equal(op(a, b), torch.stack(expected))
    empty = op(a[:0].clone().requires_grad_(), b)
    assert empty.shape == (0, 3, 4, 5) and empty.requires_grad
    with pytest.raises(RuntimeError, match=r"boxes2 must be \[M, 4\]"):
        op(a[:0], b[..., :3])


def test_aligned_boxes_broadcast():
    a = reference.random_boxes(24)
    one = a[:1].clone().requires_grad_()
    found, expected = detops.box_iou(a.view(2, 3, 4, 4), one, aligned=True), detops.box_iou(a, one)
    assert torch.equal(found, expected.view(2, 3, 4))
    (grad,) = torch.autograd.grad(found.sum(), one)
    torch.testing.assert_close(grad, torch.autograd.grad(expected.sum(), one)[0])


def test_ops_accept_arguments_of_the_functions():
    a, b = reference.random_boxes(6), reference.random_boxes(6)
    for name, options in (
        ("box_iou", dict(mode="iof")),
        *((name, dict()) for name in IOU_VARIANTS),
    ):
        found = getattr(torch.ops.detops, name)(a, b, aligned=True, **options)
        assert torch.equal(found, getattr(detops, name)(a, b, aligned=True, **options))


B = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: detops.box_iou(B[0], B.expand(2, 3, 4)),
            r"box_iou: boxes1 must be \[\.\.\., N, 4\], got \[4\]",
        ),
        (
            lambda: detops.box_iou(B.expand(2, 3, 4), B.expand(5, 3, 4)),
            r"box_iou: boxes1 and boxes2 must have leading sizes that broadcast, "
            r"got \[2, 3, 4\] and \[5, 3, 4\]",
        ),
        (
            lambda: detops.box_iou(B.int(), B.to(torch.float8_e5m2)),
            "box_iou: boxes1 must be .*got int32",
        ),
        (lambda: detops.box_iou(B, B, mode="giou"), "box_iou: mode must be iou or iof, got giou"),
        (
            lambda: detops._C.box_iou_forward(B, B, "diagonal"),
            "box_iou: kind must be iou, iof, giou, diou or ciou, got diagonal",
        ),
        (
            lambda: detops._C.box_iou_loss_forward(B, B, "diagonal"),
            "box_iou_loss: kind must be iou, giou, diou or ciou, got diagonal",
        ),
    ],
)
def test_bad_input_raises(call, message):
    with pytest.raises((RuntimeError, ValueError), match=f"detops.{message}"):
        call()
