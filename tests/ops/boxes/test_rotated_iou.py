import math

import pytest
import torch
from reference_rotated import KINDS, iou, random_boxes
from torch.autograd import gradcheck

import detops
from detops.bench.rotated import plain_rotated_iou


def pairs(count=60, dtype=torch.float64, kind="mixed", device="cpu", seed=0):
    """Returns pairs of nearby boxes; some pairs do not overlap."""
    generator = torch.Generator().manual_seed(seed)
    first = random_boxes(generator, count, torch.float64, kind)
    moved = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    second = first + moved * torch.tensor([8.0, 8, 4, 4, 40], dtype=torch.float64)
    second[:, 2:4] = second[:, 2:4].abs() + 0.1
    return [x.to(device, dtype).requires_grad_() for x in (first, second)]


def differences(first, second, mode, step=1e-5):
    """Returns central differences of the reference in float64."""
    found = []
    for k, boxes in enumerate((first, second)):
        gradient = torch.zeros_like(boxes)
        for i in range(len(boxes)):
            for c in range(5):
                sides = []
                for sign in (1, -1):
                    given = [first[i].tolist(), second[i].tolist()]
                    given[k][c] += sign * step
                    sides.append(iou(*given, mode))
                gradient[i, c] = (sides[0] - sides[1]) / (2 * step)
        found.append(gradient)
    return found


@pytest.mark.parametrize("mode", ["iou", "iof"])
@pytest.mark.parametrize("kind", ["mixed", "thin", "sizes"])
def test_rotated_iou_and_gradient_match_reference(kind, mode, device, isa):
    first, second = pairs(40, kind=kind, device=device)
    found = detops.rotated_iou(first, second, mode)
    a, b = (x.detach().cpu() for x in (first, second))
    values = [iou(x, y, mode) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    expected = torch.tensor(values, dtype=torch.float64)
    assert (expected > 0).any() and ((expected == 0).any() or kind != "mixed")
    torch.testing.assert_close(found.detach().cpu(), expected, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(found.sum(), (first, second))
    for ours, theirs in zip(gradients, differences(a, b, mode), strict=True):
        scale = float(theirs.abs().amax())
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-5 * max(scale, 0.1))


@pytest.mark.parametrize("mode", ["iou", "iof"])
def test_rotated_iou_passes_gradcheck(mode, device):
    first, second = pairs(12, device=device)
    assert gradcheck(lambda a, b: detops.rotated_iou(a, b, mode), (first, second))
    (slope, _) = torch.autograd.grad(
        detops.rotated_iou(first, second, mode).sum(), (first, second), create_graph=True
    )
    with pytest.raises(RuntimeError, match="rotated_iou_backward is not implemented"):
        slope.sum().backward()


@pytest.mark.parametrize("mode", ["iou", "giou", "diou"])
def test_rotated_iou_losses_pass_gradcheck(mode, device):
    first, second = pairs(12, device=device, seed=1)
    for reduction in ("none", "mean", "sum"):
        assert gradcheck(
            lambda a, b, how=reduction: detops.rotated_iou_loss(a, b, mode, how), (first, second)
        )


def test_benchmark_baseline_matches_rotated_iou():
    first, second = pairs(200)
    ours, theirs = detops.rotated_iou(first, second), plain_rotated_iou(first, second)
    torch.testing.assert_close(ours, theirs)
    grad = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for a, b in zip(
        torch.autograd.grad(ours, (first, second), grad),
        torch.autograd.grad(theirs, (first, second), grad),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_coinciding_boxes_have_zero_gradient(device):
    """The gradient is the mean of the one-sided derivatives, in every notation of the box."""
    boxes = pairs(50, device=device)[0].detach()
    boxes[:, 4] = (boxes[:, 4] * 8).round() / 8  # quarter turns change these exactly
    one = boxes.clone().requires_grad_()
    for other in (
        boxes,
        boxes + boxes.new_tensor([0, 0, 0, 0, 180]),
        boxes[:, [0, 1, 3, 2, 4]] + boxes.new_tensor([0, 0, 0, 0, 90]),
    ):
        found = detops.rotated_iou(one, other)
        torch.testing.assert_close(found, torch.ones_like(found))
        (gradient,) = torch.autograd.grad(found.sum(), one)
        assert gradient.abs().max() < 1e-12


def test_shared_side_halves_the_outward_gradient(device):
    """If a larger box shares a side, the gradient is half of what moving outwards gives."""
    one = torch.tensor([[2.0, 5, 4, 2, 0]], dtype=torch.float64, device=device).requires_grad_()
    around = torch.tensor([[5.0, 5, 10, 10, 0]], dtype=torch.float64, device=device)
    found = detops.rotated_iou(one, around, "iof")
    (gradient,) = torch.autograd.grad(found, one)
    # Moving left, the side of length 2 leaves the large box; moving right changes nothing.
    assert gradient.flatten().tolist() == pytest.approx([0.125, 0, -0.0625, 0, 0], abs=1e-15)


def test_undefined_or_zero_iou_has_zero_gradient(device):
    plain = [5.0, 5, 10, 10, 0]
    odd = [
        [5.0, 5, 0, 10, 0],
        [5, 5, -10, 10, 0],
        [math.nan, 5, 10, 10, 0],
        [5, 5, 10, 10, math.inf],
        [math.inf, 5, 10, 10, 0],
        [5, 5, math.inf, 10, 0],
        [50, 50, 10, 10, 30],
        [15, 5, 10, 10, 0],
    ]
    first = torch.tensor(odd, device=device).requires_grad_()
    second = torch.tensor([plain] * len(odd), device=device).requires_grad_()
    for mode in ("iou", "iof"):
        for a, b in ((first, second), (second, first)):
            found = detops.rotated_iou(a, b, mode)
            assert (found == 0).all()
            for gradient in torch.autograd.grad(found.sum(), (a, b)):
                assert (gradient == 0).all()


def test_upright_boxes_match_axis_aligned_losses(device):
    first, second = pairs(100, device=device)
    with torch.no_grad():
        first[:, 4] = second[:, 4] = 0
    upright = [detops.box_convert(x[:, :4], "cxcywh", "xyxy") for x in (first, second)]
    for mode, name in (("giou", "generalized"), ("diou", "distance")):
        ours = detops.rotated_iou_loss(first, second, mode)
        theirs = getattr(detops, f"{name}_box_iou_loss")(*upright)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    # Rotating by a right angle swaps w and h.
    turned = first[:, [0, 1, 3, 2, 4]] + first.new_tensor([0, 0, 0, 0, 90])
    for mode in ("iou", "giou", "diou"):
        torch.testing.assert_close(
            detops.rotated_iou_loss(turned, second, mode),
            detops.rotated_iou_loss(first, second, mode),
        )


def test_losses_reduce_and_promote_dtypes(device):
    first, second = pairs(30, torch.float32, device=device)
    for mode in ("iou", "giou", "diou"):
        each = detops.rotated_iou_loss(first, second, mode)
        assert each.shape == (30,) and each.dtype == torch.float32
        assert (each >= 0).all() and (each <= 2).all()
        for reduction in ("mean", "sum"):
            value = detops.rotated_iou_loss(first, second, mode, reduction)
            torch.testing.assert_close(value, getattr(each, reduction)())
        half = detops.rotated_iou_loss(first.half(), second.half(), mode)
        assert half.dtype == torch.float32
        wide = detops.rotated_iou_loss(first.half().float(), second.half().float(), mode)
        torch.testing.assert_close(half, wide)
    shaped = detops.rotated_iou(first.view(5, 6, 5), second.view(5, 6, 5))
    assert torch.equal(shaped.flatten(), detops.rotated_iou(first, second))
    for dtype in (torch.float16, torch.bfloat16):
        narrow = first.detach().to(dtype).requires_grad_()
        single = narrow.detach().float().requires_grad_()
        found = detops.rotated_iou(narrow, second)
        expected = detops.rotated_iou(single, second)
        assert found.dtype == torch.float32 and torch.equal(found, expected)
        (a,) = torch.autograd.grad(found.sum(), narrow)
        (b,) = torch.autograd.grad(expected.sum(), single)
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))


def test_rotated_iou_accepts_strided_and_empty_tensors(device):
    first, second = pairs(20, torch.float32, device=device)
    strided = second.detach().mT.contiguous().mT.requires_grad_()
    grad = torch.randn(40, device=device)[::2]
    a = torch.autograd.grad(detops.rotated_iou(first, second), (first, second), grad)
    b = torch.autograd.grad(detops.rotated_iou(first, strided), (first, strided), grad)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    nothing = torch.zeros(0, 5, device=device, requires_grad=True)
    for mode in ("iou", "giou", "diou"):
        assert detops.rotated_iou_loss(nothing, nothing, mode).shape == (0,)
        mean = detops.rotated_iou_loss(nothing, nothing, mode, "mean")
        assert mean == 0
        (gradient,) = torch.autograd.grad(mean, nothing)
        assert gradient.shape == (0, 5)


def test_rotated_iou_on_device_matches_cpu(device):
    for kind in KINDS:
        first, second = pairs(50, torch.float32, kind, device)
        here = [x.detach().cpu().requires_grad_() for x in (first, second)]
        found, expected = detops.rotated_iou(first, second), detops.rotated_iou(*here)
        assert torch.equal(found.cpu(), expected)
        ours = torch.autograd.grad(found.sum(), (first, second))
        theirs = torch.autograd.grad(expected.sum(), here)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(ours, theirs, strict=True))


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    first, second = pairs(3000)

    def results():
        found = detops.rotated_iou(first, second)
        return [found.detach(), *torch.autograd.grad(found.sum(), (first, second))]

    one, two = two_threads(results)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.slow
def test_rotated_iou_passes_opcheck_and_vmaps():
    first, second = (x.detach() for x in pairs(6, torch.float32))
    ops = torch.ops.detops
    torch.library.opcheck(ops.rotated_iou.default, (first.requires_grad_(), second))
    first = first.detach()
    torch.library.opcheck(ops.rotated_iou_forward.default, (first, second, "iof"))
    torch.library.opcheck(ops.rotated_iou_backward.default, (torch.rand(6), first, second, "iou"))
    both = torch.vmap(detops.rotated_iou)(torch.stack([first, second]), torch.stack([second] * 2))
    assert torch.equal(both[0], detops.rotated_iou(first, second)) and (both[1] > 0.99).all()
    one = torch.vmap(detops.rotated_iou, in_dims=(None, 0))(first, torch.stack([second, first]))
    assert torch.equal(one[0], detops.rotated_iou(first, second))


def test_rotated_iou_rejects_bad_input():
    boxes = torch.rand(3, 5)
    with pytest.raises(
        RuntimeError, match=r"detops.rotated_iou: boxes2 must be \[3, 5\], got \[2, 5\]"
    ):
        detops.rotated_iou(boxes, boxes[:2])
    with pytest.raises(RuntimeError, match=r"detops.rotated_iou: boxes1 must be \[..., 5\]"):
        detops.rotated_iou(boxes[:, :4], boxes)
    with pytest.raises(RuntimeError, match="mode must be iou or iof, got giou"):
        detops.rotated_iou(boxes, boxes, "giou")
    with pytest.raises(RuntimeError, match="boxes1 must be float32"):
        detops.rotated_iou_loss(boxes.long(), boxes)
    message = "detops.rotated_iou_loss: mode must be iou, giou or diou, got ciou"
    with pytest.raises(ValueError, match=message):
        detops.rotated_iou_loss(boxes, boxes, "ciou")
    message = "detops.rotated_iou_loss: reduction must be none, mean or sum, got all"
    with pytest.raises(ValueError, match=message):
        detops.rotated_iou_loss(boxes, boxes, reduction="all")
