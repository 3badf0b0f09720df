"""Values and ties of convex_iou and convex_giou. test_overlap_contract.py tests the rest."""

import pytest
import torch
from overlap_inputs import POINT_SETS

import detops
from detops.bench.polygons import plain_convex_giou, plain_convex_iou

SQUARE = [0.0, 0, 4, 0, 4, 4, 0, 4]
NINE = [0.0, 0, 4, 0, 4, 4, 0, 4, 2, 2, 1, 1, 3, 3, 2, 1, 1, 2]  # its hull is the square


def test_benchmark_baselines_match_convex_ops():
    points, polygons = POINT_SETS.smooth["spread, convex"](torch.Generator().manual_seed(0), 40, 40)
    polygons[::2] = polygons[::2].view(-1, 4, 2).flip(1).flatten(1)  # counter-clockwise
    torch.testing.assert_close(
        detops.convex_iou(points, polygons), plain_convex_iou(points, polygons)
    )
    points.requires_grad_()
    ours, theirs = detops.convex_giou(points, polygons), plain_convex_giou(points, polygons)
    torch.testing.assert_close(ours, theirs)
    grad = torch.linspace(-1, 1, len(ours), dtype=torch.float64)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, points, grad)[0] for x in (ours, theirs)), rtol=1e-8, atol=1e-9
    )


def test_convex_iou_and_giou_match_known_values(device):
    def tensors(*rows):
        return [torch.tensor([row], dtype=torch.float64, device=device) for row in rows]

    nine, square = tensors(NINE, SQUARE)
    assert detops.convex_iou(nine, square).item() == 1
    assert detops.convex_giou(nine, square).item() == 1
    clockwise = square.view(1, 4, 2).flip(1).reshape(1, 8)
    assert detops.convex_iou(nine, clockwise).item() == 1
    (dart,) = tensors([0.0, 0, 4, 0, 1, 1, 0, 4])  # a quarter of the square
    assert detops.convex_iou(nine, dart).item() == pytest.approx(0.25)
    for turn in range(4):
        rolled = dart.view(1, 4, 2).roll(turn, 1).reshape(1, 8)
        assert detops.convex_iou(nine, rolled).item() == pytest.approx(0.25)
    # Next to each other: the hull of both is 12 x 4, and a third of it is empty.
    (adjacent,) = tensors([8.0, 0, 12, 0, 12, 4, 8, 4])
    assert detops.convex_giou(nine, adjacent).item() == pytest.approx(-1 / 3)
    distant = torch.tensor([1e6, -1e6] * 9, dtype=torch.float64, device=device)
    (third,) = tensors([2.0, 0, 6, 0, 6, 4, 2, 4])
    assert detops.convex_iou(nine + distant, third + distant[:8]).item() == pytest.approx(
        1 / 3, abs=1e-12
    )


def test_only_hull_points_receive_gradient(device):
    points = torch.tensor([NINE], dtype=torch.float64, device=device).requires_grad_()
    enclosing = torch.tensor([[-1.0, -1, 9, -1, 9, 9, -1, 9]], dtype=torch.float64, device=device)
    (gradient,) = torch.autograd.grad(detops.convex_giou(points, enclosing).sum(), points)
    assert (gradient[0, :8] != 0).all() and (gradient[0, 8:] == 0).all()
    # The hull equals the quadrilateral: moving a corner inwards or outwards lowers the value.
    square = torch.tensor([SQUARE], dtype=torch.float64, device=device)
    (gradient,) = torch.autograd.grad(detops.convex_giou(points, square).sum(), points)
    outward = (gradient[0, :8].view(4, 2) * (square.view(4, 2) - 2)).sum(1)
    assert (outward.abs() <= 0.5).all()
    # The first of equal points receives the gradient.
    doubled = points.detach().clone()
    doubled[0, 8:] = doubled[0, :10].clone()
    doubled.requires_grad_()
    (gradient,) = torch.autograd.grad(detops.convex_giou(doubled, enclosing).sum(), doubled)
    assert (gradient[0, :8] != 0).all() and (gradient[0, 8:] == 0).all()


def test_sets_without_area_give_zero_with_zero_gradient(device):
    line = torch.tensor([[1.0, 1, 2, 2, 3, 3, 1, 1]], device=device)
    for points in (torch.ones(1, 18, device=device), line.repeat(1, 3)[:, :18]):
        points.requires_grad_()
        value = detops.convex_giou(points, line)
        assert value == 0 and (torch.autograd.grad(value.sum(), points)[0] == 0).all()
