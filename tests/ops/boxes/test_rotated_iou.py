"""Derivatives of rotated_iou at ties. test_overlap_contract.py tests most properties."""

import pytest
import torch
from overlap_inputs import ROTATED

import detops
from detops.bench.rotated import plain_rotated_iou


def pairs(count, device="cpu"):
    """Returns pairs of nearby boxes; some pairs do not overlap."""
    boxes = ROTATED.smooth["mixed"](torch.Generator().manual_seed(0), count, count)
    return [x.to(device).requires_grad_() for x in boxes]


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
    enclosing = torch.tensor([[5.0, 5, 10, 10, 0]], dtype=torch.float64, device=device)
    found = detops.rotated_iou(one, enclosing, "iof")
    (gradient,) = torch.autograd.grad(found, one)
    # Moving left, the side of length 2 leaves the large box; moving right changes nothing.
    assert gradient.flatten().tolist() == pytest.approx([0.125, 0, -0.0625, 0, 0], abs=1e-15)


def test_touching_boxes_have_zero_gradient(device):
    rows = torch.tensor([[5.0, 5, 10, 10, 0], [15, 5, 10, 10, 0]], device=device)
    for mode in ("iou", "iof"):
        pair = [x.requires_grad_() for x in rows.clone().split(1)]
        found = detops.rotated_iou(*pair, mode)
        assert found == 0 and all((x == 0).all() for x in torch.autograd.grad(found, pair))


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
    rotated = first[:, [0, 1, 3, 2, 4]] + first.new_tensor([0, 0, 0, 0, 90])
    for mode in ("iou", "giou", "diou"):
        torch.testing.assert_close(
            detops.rotated_iou_loss(rotated, second, mode),
            detops.rotated_iou_loss(first, second, mode),
        )
