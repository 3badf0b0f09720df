import math

import pytest
import reference
import torch
import torchvision
from torch.autograd import gradcheck

import detops


def grids(dtype=torch.float32):
    """Returns boxes that overlap, touch, coincide with or miss each other; some are inverted."""
    generator = torch.Generator().manual_seed(0)
    corner = torch.randint(0, 8, (40, 2), generator=generator)
    side = torch.randint(-1, 5, (40, 2), generator=generator)
    return torch.cat([corner, corner + side], 1).to(dtype)


def test_box_iou_matches_torchvision(device):
    a = reference.random_boxes(50).to(device)
    b = reference.random_boxes(70).to(device)
    torch.testing.assert_close(detops.box_iou(a, b), torchvision.ops.box_iou(a, b))
    c = grids().to(device)
    theirs = torchvision.ops.box_iou(c, c)
    defined = theirs.isfinite()
    torch.testing.assert_close(detops.box_iou(c, c)[defined], theirs[defined])


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 1500), (1500, 3), (70, 1100)])
def test_box_iou_matches_torchvision_for_any_shape(device, rows, columns):
    a, b = (reference.random_boxes(n).to(device) for n in (rows, columns))
    torch.testing.assert_close(detops.box_iou(a, b), torchvision.ops.box_iou(a, b))


def test_undefined_iou_is_zero_with_finite_gradient(device):
    odd = torch.tensor(
        [[1.0, 1, 1, 1], [math.nan, 0, 2, 2], [0, 0, math.inf, 2], [-1e30, -1e30, 1e30, 1e30]],
        device=device,
        requires_grad=True,
    )
    iou = detops.box_iou(odd, odd)
    assert (iou == 0).all()
    (grad,) = torch.autograd.grad(iou.sum(), odd)
    assert grad.isfinite().all()


def test_box_iou_passes_gradcheck(device):
    a = reference.random_boxes(4, dtype=torch.double).to(device).requires_grad_()
    b = reference.random_boxes(5, dtype=torch.double).to(device).requires_grad_()
    assert gradcheck(detops.box_iou, (a, b))


def test_gradient_at_ties_matches_torchvision():
    boxes = grids(torch.double)
    boxes = boxes[(boxes[:, 2:] > boxes[:, :2]).all(1)]
    a, b = boxes.clone().requires_grad_(), boxes.flip(0).requires_grad_()
    theirs = torchvision.ops.box_iou(a, b)
    weight = torch.rand_like(theirs) * reference.not_just_touching(a, b)
    ours = torch.autograd.grad(detops.box_iou(a, b), (a, b), weight)
    for x, y in zip(ours, torch.autograd.grad(theirs, (a, b), weight), strict=True):
        torch.testing.assert_close(x, y)


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    a, b = reference.random_boxes(300).requires_grad_(), reference.random_boxes(500)

    def both():
        iou = detops.box_iou(a, b)
        return iou, *torch.autograd.grad(iou.square().sum(), a)

    for x, y in zip(*two_threads(both), strict=True):
        assert torch.equal(x, y)


def test_box_iou_promotes_dtypes(device):
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
def test_box_iou_accepts_every_box_format(fmt):
    a = reference.random_boxes(20)
    other = detops.box_convert(a, "xyxy", fmt)
    torch.testing.assert_close(detops.box_iou(other, other, fmt=fmt), detops.box_iou(a, a))


def test_box_iou_accepts_strided_and_empty_tensors(device):
    a = reference.random_boxes(20).to(device)
    strided = a.t().contiguous().t()
    assert torch.equal(detops.box_iou(strided, a[::2]), detops.box_iou(a, a[::2].contiguous()))
    empty = torch.zeros(0, 4, device=device, requires_grad=True)
    iou = detops.box_iou(empty, a)
    assert iou.shape == (0, 20)
    iou.sum().backward()
    assert empty.grad.shape == (0, 4)


KIN = {
    "generalized_box_iou": "giou",
    "distance_box_iou": "diou",
    "complete_box_iou": "ciou",
}


@pytest.mark.parametrize("name", ["box_iou", *KIN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_iou_variants_match_torchvision(name, dtype, isa):
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    for n, m in ((1, 1), (3, 17), (40, 33)):
        a, b = reference.random_boxes(n, dtype=dtype), reference.random_boxes(m, dtype=dtype)
        a[0] = b[0]
        torch.testing.assert_close(ours(a, b), theirs(a, b))
    c = grids(dtype)
    c = c[(c[:, 2:] > c[:, :2]).all(1)]
    torch.testing.assert_close(ours(c, c), theirs(c, c))


@pytest.mark.parametrize("name", KIN)
def test_iou_variants_on_device_match_torchvision(name, device):
    a, b = reference.random_boxes(50).to(device), reference.random_boxes(70).to(device)
    expected = getattr(torchvision.ops, name)(a.cpu(), b.cpu())
    torch.testing.assert_close(getattr(detops, name)(a, b).cpu(), expected)


@pytest.mark.parametrize("name", KIN)
def test_gradients_of_iou_variants_match_torchvision(name, device):
    a = reference.random_boxes(4, dtype=torch.double).to(device).requires_grad_()
    b = reference.random_boxes(5, dtype=torch.double).to(device).requires_grad_()
    ours, theirs = getattr(detops, name), getattr(torchvision.ops, name)
    if name != "complete_box_iou":  # a factor is constant here, but not in finite differences
        assert gradcheck(ours, (a, b))
    # Includes ties and boxes that only touch.
    c = grids(torch.double).to(device)
    c = c[(c[:, 2:] > c[:, :2]).all(1)]
    touching = [(c.requires_grad_(), c.detach().flip(0).requires_grad_())]
    for x, y in [(a, b), *(touching if reference.clamp_is_flat_at_its_bound() else [])]:
        weight = torch.rand(len(x), len(y), dtype=torch.double, device=device)
        expected = torch.autograd.grad(theirs(x, y), (x, y), weight)
        for ours_, theirs_ in zip(
            torch.autograd.grad(ours(x, y), (x, y), weight), expected, strict=True
        ):
            torch.testing.assert_close(ours_, theirs_)


@pytest.mark.parametrize("name", KIN)
def test_iou_variants_of_odd_boxes_are_finite(name, device):
    odd = torch.tensor(
        [
            [1.0, 1, 1, 1],
            [2.0, 2, 2, 2],
            [math.nan, 0, 2, 2],
            [0, 0, math.inf, 2],
            [-1e30, -1e30, 1e30, 1e30],
            [3, 3, 1, 1],
            [1, 2, 3, 4],
        ],
        device=device,
        requires_grad=True,
    )
    overlap = getattr(detops, name)(odd, odd)
    assert overlap.isfinite().all()
    assert overlap[0, 0] == 0
    (grad,) = torch.autograd.grad(overlap.sum(), odd)
    assert grad.isfinite().all()


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


def test_batched_boxes_match_loop_over_batches():
    a, b = (
        reference.random_boxes(24).reshape(2, 3, 4, 4),
        reference.random_boxes(15).reshape(3, 5, 4),
    )
    for name in ("box_iou", *KIN):
        ours = getattr(detops, name)(a, b)
        expected = [[getattr(detops, name)(a[i, j], b[j]) for j in range(3)] for i in range(2)]
        assert torch.equal(ours, torch.stack([torch.stack(row) for row in expected]))
        none = getattr(detops, name)(a[:0].clone().requires_grad_(), b)
        assert none.shape == (0, 3, 4, 5) and none.requires_grad
        with pytest.raises(RuntimeError, match=r"boxes2 must be \[M, 4\]"):
            getattr(detops, name)(a[:0], b[..., :3])


@pytest.mark.slow
def test_box_iou_passes_opcheck_compiles_and_vmaps():
    a, b = reference.random_boxes(4), reference.random_boxes(6)
    torch.library.opcheck(torch.ops.detops.box_iou_forward.default, (a, b))
    torch.library.opcheck(torch.ops.detops.box_iou_backward.default, (torch.rand(4, 6), a, b))
    for kind in KIN.values():
        torch.library.opcheck(torch.ops.detops.box_iou_forward.default, (a, b, kind, 1e-7))
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


def test_iou_variants_name_their_op_in_errors():
    for name in KIN:
        with pytest.raises(RuntimeError, match=f"detops.{name}: boxes1 must be"):
            getattr(detops, name)(B[:, :3], B)
    with pytest.raises(
        RuntimeError, match="kind must be iou, iof, giou, diou or ciou, got diagonal"
    ):
        detops._C.box_iou_forward(B, B, "diagonal")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: detops.box_iou(B[:, :3], B), r"boxes1 must be \[N, 4\], got \[3, 3\]"),
        (lambda: detops.box_iou(B, B[0]), r"boxes2 must be \[M, 4\], got \[4\]"),
        (
            lambda: detops.box_iou(B[0], B.expand(2, 3, 4)),
            r"boxes1 must be \[\.\.\., N, 4\], got \[4\]",
        ),
        (
            lambda: detops.box_iou(B.expand(2, 3, 4), B.expand(5, 3, 4)),
            r"boxes1 and boxes2 must have leading sizes that broadcast, got \[2, 3, 4\] and \[5,",
        ),
        (lambda: detops.box_iou(B, B > 0), "boxes2 must be float32.*got bool"),
        (lambda: detops.box_iou(B.int(), B.to(torch.float8_e5m2)), "boxes1 must be .*got int32"),
        (lambda: detops.box_iou(B, B.to("meta")), "boxes2 must be on the device of boxes1"),
    ],
)
def test_box_iou_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.box_iou: {message}"):
        call()
