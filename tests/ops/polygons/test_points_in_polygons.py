import math

import pytest
import reference_polygons as reference
import torch

import detops
from detops.bench.polygons import plain_points_in_polygons


def expected(points, polygons):
    corners = [reference.to_points(p) for p in polygons]
    rows = [[reference.contains(c, p) for c in corners] for p in points.double().tolist()]
    return torch.tensor(rows, dtype=torch.bool).reshape(len(points), len(polygons))


def inputs(
    count=70, polygons=19, kind="convex", dtype=torch.float32, device="cpu", with_integers=False
):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(count, 2, generator=generator, dtype=torch.double) * 80 - 10
    quads = reference.random_quads(generator, polygons, kind)
    if with_integers:
        points, quads = (points / 5).round() * 5, (quads / 5).round() * 5
    return points.to(device, dtype), quads.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["convex", "concave", "any"])
@pytest.mark.parametrize("with_integers", [False, True])
def test_points_in_polygons_matches_reference(kind, with_integers, dtype, device, isa):
    for count, polygons in ((1, 1), (70, 19), (9, 8), (33, 3)):
        points, quads = inputs(count, polygons, kind, dtype, device, with_integers)
        found = detops.points_in_polygons(points, quads)
        assert found.dtype == torch.bool
        assert torch.equal(found.cpu(), expected(points.cpu(), quads.cpu()))
    assert found.any() or with_integers


def test_benchmark_baseline_matches_points_in_polygons():
    points, quads = inputs(500, 40)
    found = detops.points_in_polygons(points, quads)
    assert found.any() and torch.equal(found, plain_points_in_polygons(points, quads))


def test_points_on_the_border_are_outside(device):
    square = torch.tensor([[0.0, 0, 4, 0, 4, 4, 0, 4]], device=device)
    border_points = [[0.0, 0], [4, 0], [4, 4], [0, 4], [2, 0], [4, 2], [2, 4], [0, 2]]
    outside_points = [[-1.0, 0], [5, 0], [-1, 4], [5, 4], [2, -1], [2, 5], [-1, 2], [5, 2]]
    inside_points = [[2.0, 2], [1e-3, 1e-3], [3.999, 3.999]]
    for polygon in (square, square.view(1, 4, 2).flip(1).reshape(1, 8)):
        found = detops.points_in_polygons(
            torch.tensor(border_points + outside_points + inside_points, device=device), polygon
        )
        assert found[:, 0].tolist() == [False] * 16 + [True] * 3
    # Points level with a corner: their ray to the right meets it once or twice.
    kite = torch.tensor([[0.0, 0, 2, -2, 4, 0, 2, 2]], device=device)
    points = torch.tensor([[1.0, 0], [3, 0], [-1, 0], [0, 2], [0, -2]], device=device)
    assert detops.points_in_polygons(points, kite)[:, 0].tolist() == [True, True] + [False] * 3


def test_nonfinite_points_and_flat_polygons_are_outside(device):
    square = torch.tensor([[0.0, 0, 4, 0, 4, 4, 0, 4]], device=device)
    points = torch.tensor(
        [[math.nan, 2], [2, math.nan], [math.inf, 2], [2, -math.inf], [-math.inf, 2]], device=device
    )
    assert not detops.points_in_polygons(points, square).any()
    middle = torch.tensor([[2.0, 2]], device=device)
    for value in (math.nan, math.inf, -math.inf):
        for i in range(8):
            nonfinite = square.clone()
            nonfinite[0, i] = value
            assert not detops.points_in_polygons(middle, nonfinite).any()
    empty = torch.tensor([[1.0, 1] * 4, [0, 0, 4, 4, 0, 0, 4, 4]], device=device)
    assert not detops.points_in_polygons(
        torch.tensor([[1.0, 1], [2, 2], [3, 1]]).to(device), empty
    ).any()


def test_op_accepts_dtypes_layouts_and_empty_tensors(device):
    points, quads = inputs(40, 21, device=device)
    found = detops.points_in_polygons(points, quads)
    assert torch.equal(found.cpu(), detops.points_in_polygons(points.cpu(), quads.cpu()))
    strided = points.t().contiguous().t(), quads.t().contiguous().t()
    assert torch.equal(detops.points_in_polygons(*strided), found)
    for dtype in (torch.float16, torch.bfloat16):
        half = points.to(dtype)
        assert torch.equal(
            detops.points_in_polygons(half, quads), detops.points_in_polygons(half.float(), quads)
        )
    assert torch.equal(detops.points_in_polygons(points, quads.double()), found)
    assert detops.points_in_polygons(points[:0], quads).shape == (0, 21)
    assert detops.points_in_polygons(points, quads[:0]).shape == (40, 0)
    assert not detops.points_in_polygons(points.requires_grad_(), quads).requires_grad


@pytest.mark.slow
def test_op_passes_opcheck_and_rejects_bad_input(two_threads):
    points, quads = inputs(3000, 37)
    torch.library.opcheck(torch.ops.detops.points_in_polygons.default, (points[:5], quads[:3]))
    one, two = two_threads(lambda: detops.points_in_polygons(points, quads))
    assert torch.equal(one, two)
    with pytest.raises(RuntimeError, match=r"points_in_polygons: points must be \[P, 2\], got"):
        detops.points_in_polygons(quads, quads)
    with pytest.raises(RuntimeError, match=r"points_in_polygons: polygons must be \[M, 8\], got"):
        detops.points_in_polygons(points, points)
    with pytest.raises(RuntimeError, match="polygons must be float32"):
        detops.points_in_polygons(points, quads.long())
