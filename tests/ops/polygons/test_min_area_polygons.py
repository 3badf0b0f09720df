import math

import pytest
import reference_polygons as reference
import torch

import detops
from detops.bench.polygons import plain_min_area_polygons


def sets(count=60, kind="spread", dtype=torch.float64, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    return reference.random_sets(generator, count, kind).to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["spread", "gridded"])
def test_min_area_polygons_finds_the_smallest_rectangle(kind, dtype, device):
    point_sets = sets(60, kind, dtype, device)
    found = detops.min_area_polygons(point_sets)
    assert found.dtype == dtype
    rounding = 1e-4 if dtype == torch.float32 else 1e-10
    for row, polygon in zip(point_sets.cpu(), found.cpu(), strict=True):
        a, b, c, d = reference.to_points(polygon)
        u, v = (a[0] - b[0], a[1] - b[1]), (d[0] - a[0], d[1] - a[1])
        assert u[0] > -rounding and u[1] > -rounding  # from 0 to 90 degrees
        assert u[0] * v[0] + u[1] * v[1] == pytest.approx(0, abs=100 * rounding)
        assert (c[0] - d[0], c[1] - d[1]) == pytest.approx((-u[0], -u[1]), abs=rounding)
        assert reference.area([b, a, d, c]) == pytest.approx(reference.min_area(row), rel=rounding)
        for p in reference.to_points(row):
            for corner, side in ((b, u), (b, v)):
                length = math.hypot(*side)
                along = (p[0] - corner[0]) * side[0] + (p[1] - corner[1]) * side[1]
                assert -rounding * 10 <= along / length <= length + rounding * 10


def test_benchmark_baseline_matches_min_area_polygons():
    point_sets = sets()
    found, plain = detops.min_area_polygons(point_sets), plain_min_area_polygons(point_sets)
    # An acute triangle has three such rectangles, so the test compares areas.
    areas = [[abs(reference.area(reference.to_points(p))) for p in x] for x in (found, plain)]
    assert areas[0] == pytest.approx(areas[1])


def test_first_side_wins_among_equal_rectangles(device):
    triangle = [0.0, 0, 8, 1, 3, 7] + [3.0, 3] * 6
    point_sets = torch.tensor([triangle], dtype=torch.float64, device=device)
    for turn in range(3):
        points = point_sets.view(1, 9, 2).clone()
        points[:, :3] = points[:, :3].roll(turn, 1)
        corners = detops.min_area_polygons(points.view(1, 18)).view(4, 2)
        side = corners[0] - corners[1]
        torch.testing.assert_close(side / side.norm(), side.new_tensor([8, 1]) / 65**0.5)


def test_min_area_polygons_gives_known_corners_in_order(device):
    nine = [1.0, 1, 2, 2, 1, 2, 2, 1, 1, 3, 3, 1, 2, 3, 3, 2, 1.5, 1.5]
    long = [1.0, 1, 8, 8, 1, 2, 2, 1, 1, 3, 3, 1, 2, 3, 3, 2, 1.5, 1.5]
    found = detops.min_area_polygons(torch.tensor([nine, long], device=device)).cpu()
    assert found[0].tolist() == [3, 1, 1, 1, 1, 3, 3, 3]
    # The side from (3, 1) to (8, 8) has slope 7 / 5.
    inverse_length, direction = 74**-0.5, torch.tensor([5.0, 7])
    assert found[1, :2].tolist() == [8, 8]
    side = found[1, :2] - found[1, 2:4]
    torch.testing.assert_close(side / side.norm(), direction * inverse_length)
    # A square rotated by 45 degrees.
    diamond = [0.0, -2, 2, 0, 0, 2, -2, 0] + [0.0, 0] * 5
    found = detops.min_area_polygons(torch.tensor([diamond], device=device)).cpu()
    torch.testing.assert_close(found, torch.tensor([[2.0, 0, 0, -2, -2, 0, 0, 2]]))


def test_flat_sets_give_flat_rectangles_and_nonfinite_give_nan(device):
    one = torch.tensor([[3.0, 4] * 9], device=device)
    assert detops.min_area_polygons(one).tolist() == [[3.0, 4] * 4]
    line = torch.tensor([[0.0, 0, 4, 0] + [2.0, 0] * 7], device=device)
    assert detops.min_area_polygons(line).tolist() == [[4.0, 0, 0, 0, 0, 0, 4, 0]]
    nonfinite = one.repeat(3, 1)
    nonfinite[0, 7], nonfinite[1, 0], nonfinite[2, 17] = math.nan, math.inf, -math.inf
    assert detops.min_area_polygons(nonfinite).isnan().all()


def test_op_accepts_dtypes_layouts_and_empty_tensors(device):
    point_sets = sets(20, dtype=torch.float32, device=device)
    expected = detops.min_area_polygons(point_sets)
    assert torch.equal(detops.min_area_polygons(point_sets.t().contiguous().t()), expected)
    assert torch.equal(expected.cpu(), detops.min_area_polygons(point_sets.cpu()))
    for dtype in (torch.float16, torch.bfloat16):
        half = point_sets.to(dtype)
        assert torch.equal(detops.min_area_polygons(half), detops.min_area_polygons(half.float()))
    assert detops.min_area_polygons(point_sets[:0]).shape == (0, 8)


@pytest.mark.slow
def test_op_passes_opcheck_and_rejects_bad_input(two_threads):
    point_sets = sets(2000)
    torch.library.opcheck(torch.ops.detops.min_area_polygons.default, (point_sets[:4],))
    one, two = two_threads(lambda: detops.min_area_polygons(point_sets))
    assert torch.equal(one, two)
    with pytest.raises(RuntimeError, match=r"min_area_polygons: pointsets must be \[N, 18\], got"):
        detops.min_area_polygons(point_sets[:, :16])
    with pytest.raises(RuntimeError, match="derivative for detops::min_area_polygons"):
        detops.min_area_polygons(point_sets.requires_grad_()).sum().backward()
