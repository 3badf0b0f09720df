import math

import pytest
import reference_polygons as reference
import torch
from torch.autograd import gradcheck

import detops
from detops.bench.polygons import plain_convex_giou, plain_convex_iou

SQUARE = [0.0, 0, 4, 0, 4, 4, 0, 4]
NINE = [0.0, 0, 4, 0, 4, 4, 0, 4, 2, 2, 1, 1, 3, 3, 2, 1, 1, 2]  # its hull is the square


def inputs(count=40, dtype=torch.float64, device="cpu", sets="spread", quads="convex"):
    """Returns point sets and quadrilaterals; some pairs do not overlap."""
    generator = torch.Generator().manual_seed(0)
    points = reference.random_sets(generator, count, sets)
    polygons = reference.random_quads(generator, count, quads)
    near = points.view(count, 9, 2).mean(1) - polygons.view(count, 4, 2).mean(1)
    polygons[count // 4 :] += 0.7 * near.repeat(1, 4)[count // 4 :]
    return points.to(device, dtype), polygons.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("quads", ["convex", "concave"])
@pytest.mark.parametrize("sets", ["spread", "gridded"])
def test_convex_iou_and_giou_match_reference(sets, quads, dtype, device):
    points, polygons = inputs(40, dtype, device, sets, quads)
    rounding = 1e-6 if dtype == torch.float32 else 1e-11
    close = dict(rtol=rounding, atol=rounding)
    expected = reference.convex_iou(points.cpu(), polygons[:17].cpu())
    assert (expected > 0.1).any() and (expected == 0).any()
    found = detops.convex_iou(points, polygons[:17])
    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu().double(), expected, **close)
    giou = detops.convex_giou(points, polygons)
    assert giou.dtype == dtype and (giou < 0).any() and (giou > 0).any()
    expected = reference.convex_giou(points.cpu(), polygons.cpu())
    torch.testing.assert_close(giou.cpu().double(), expected, **close)


def test_benchmark_baselines_match_convex_ops():
    points, polygons = inputs()
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


@pytest.mark.parametrize("quads", ["convex", "concave"])
def test_convex_giou_passes_gradcheck(quads, device):
    points, polygons = inputs(16, device=device, quads=quads)
    points.requires_grad_()
    assert gradcheck(detops.convex_giou, (points, polygons))
    (slope,) = torch.autograd.grad(
        detops.convex_giou(points, polygons).sum(), points, create_graph=True
    )
    with pytest.raises(RuntimeError, match="convex_giou_backward is not implemented"):
        slope.sum().backward()


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
    (beside,) = tensors([8.0, 0, 12, 0, 12, 4, 8, 4])
    assert detops.convex_giou(nine, beside).item() == pytest.approx(-1 / 3)
    far = torch.tensor([1e6, -1e6] * 9, dtype=torch.float64, device=device)
    (third,) = tensors([2.0, 0, 6, 0, 6, 4, 2, 4])
    assert detops.convex_iou(nine + far, third + far[:8]).item() == pytest.approx(1 / 3, abs=1e-12)


def test_only_hull_points_receive_gradient(device):
    points = torch.tensor([NINE], dtype=torch.float64, device=device).requires_grad_()
    around = torch.tensor([[-1.0, -1, 9, -1, 9, 9, -1, 9]], dtype=torch.float64, device=device)
    (gradient,) = torch.autograd.grad(detops.convex_giou(points, around).sum(), points)
    assert (gradient[0, :8] != 0).all() and (gradient[0, 8:] == 0).all()
    # The hull equals the quadrilateral: moving a corner inwards or outwards lowers the value.
    square = torch.tensor([SQUARE], dtype=torch.float64, device=device)
    (gradient,) = torch.autograd.grad(detops.convex_giou(points, square).sum(), points)
    outward = (gradient[0, :8].view(4, 2) * (square.view(4, 2) - 2)).sum(1)
    assert (outward.abs() <= 0.5).all()
    # The first of equal points receives the gradient.
    twice = points.detach().clone()
    twice[0, 8:] = twice[0, :10].clone()
    twice.requires_grad_()
    (gradient,) = torch.autograd.grad(detops.convex_giou(twice, around).sum(), twice)
    assert (gradient[0, :8] != 0).all() and (gradient[0, 8:] == 0).all()


def test_nonfinite_points_give_zero_iou_and_nan_giou(device):
    nine = torch.tensor([NINE] * 4, device=device)
    square = torch.tensor([SQUARE] * 4, device=device)
    nine[1, 5], nine[2, 0] = math.nan, math.inf
    nine[3] = 1.0
    assert detops.convex_iou(nine, square)[:, 0].tolist() == [1, 0, 0, 0]
    assert detops.convex_iou(nine[:1], nine[1:3, :8]).tolist() == [[0, 0]]
    nine.requires_grad_()
    giou = detops.convex_giou(nine, square)
    assert giou[0] == 1 and giou[1:3].isnan().all() and giou[3] == 0
    (gradient,) = torch.autograd.grad(giou[[0, 3]].sum(), nine)
    assert gradient[1:3].isnan().all() and gradient[[0, 3]].isfinite().all()
    # A line and a point have no area to divide by.
    flat = torch.tensor([[1.0, 1, 2, 2, 3, 3, 1, 1]], device=device)
    for points in (nine[3:].detach(), flat.repeat(1, 3)[:, :18]):
        assert detops.convex_iou(points, flat).item() == 0
        points = points.clone().requires_grad_()
        value = detops.convex_giou(points, flat)
        assert value.item() == 0
        assert (torch.autograd.grad(value.sum(), points)[0] == 0).all()


def test_convex_ops_on_device_match_cpu(device):
    points, polygons = inputs(30, torch.float32, device)
    here = points.cpu(), polygons.cpu()
    assert torch.equal(detops.convex_iou(points, polygons).cpu(), detops.convex_iou(*here))
    found = [x.requires_grad_() for x in (points, here[0])]
    values = [detops.convex_giou(x, y) for x, y in zip(found, (polygons, here[1]), strict=True)]
    assert torch.equal(values[0].cpu(), values[1])
    a, b = (torch.autograd.grad(v.sum(), x)[0] for v, x in zip(values, found, strict=True))
    assert torch.equal(a.cpu(), b)


def test_convex_ops_accept_dtypes_layouts_and_empty_tensors(device):
    points, polygons = inputs(20, torch.float32, device)
    for dtype in (torch.float16, torch.bfloat16):
        half, single = points.to(dtype), points.to(dtype).float()
        found = detops.convex_iou(half, polygons)
        assert found.dtype == torch.float32
        assert torch.equal(found, detops.convex_iou(single, polygons))
        half.requires_grad_()
        single.requires_grad_()
        values = detops.convex_giou(half, polygons), detops.convex_giou(single, polygons)
        assert torch.equal(*values)
        (a,) = torch.autograd.grad(values[0].sum(), half)
        (b,) = torch.autograd.grad(values[1].sum(), single)
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))
    assert detops.convex_iou(points, polygons.double()).dtype == torch.float64
    strided = points.t().contiguous().t(), polygons.t().contiguous().t()
    assert torch.equal(detops.convex_iou(*strided), detops.convex_iou(points, polygons))
    assert torch.equal(detops.convex_giou(*strided), detops.convex_giou(points, polygons))
    nothing = torch.zeros(0, 18, device=device, requires_grad=True)
    assert detops.convex_iou(nothing, polygons).shape == (0, 20)
    assert detops.convex_iou(points, polygons[:0]).shape == (20, 0)
    value = detops.convex_giou(nothing, polygons[:0])
    assert value.shape == (0,)
    assert torch.autograd.grad(value.sum(), nothing)[0].shape == (0, 18)


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    points, polygons = inputs(3000)
    points.requires_grad_()

    def results():
        giou = detops.convex_giou(points, polygons)
        iou = detops.convex_iou(points.detach(), polygons[:50])
        return [iou, giou.detach(), *torch.autograd.grad(giou.sum(), points)]

    one, two = two_threads(results)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.slow
def test_convex_ops_pass_opcheck_and_vmap():
    points, polygons = inputs(5, torch.float32)
    ops = torch.ops.detops
    torch.library.opcheck(ops.convex_iou.default, (points, polygons))
    torch.library.opcheck(ops.convex_giou.default, (points.clone().requires_grad_(), polygons))
    torch.library.opcheck(ops.convex_giou_forward.default, (points, polygons))
    torch.library.opcheck(ops.convex_giou_backward.default, (torch.rand(5), points, polygons))
    expected = detops.convex_giou(points, polygons)
    both = torch.vmap(detops.convex_giou)(torch.stack([points] * 2), torch.stack([polygons] * 2))
    assert torch.equal(both, torch.stack([expected] * 2))
    one = torch.vmap(detops.convex_giou, in_dims=(None, 1))(points, torch.stack([polygons] * 2, 1))
    assert torch.equal(one, both)


def test_convex_ops_reject_bad_input():
    points, polygons = inputs(3, torch.float32)
    with pytest.raises(RuntimeError, match=r"detops.convex_iou: pointsets must be \[N, 18\], got"):
        detops.convex_iou(polygons, polygons)
    with pytest.raises(RuntimeError, match=r"detops.convex_iou: polygons must be \[K, 8\], got"):
        detops.convex_iou(points, points)
    with pytest.raises(RuntimeError, match=r"detops.convex_giou: polygons must be \[3, 8\], got"):
        detops.convex_giou(points, polygons[:2])
    with pytest.raises(RuntimeError, match="derivative for detops::convex_iou is not implemented"):
        detops.convex_iou(points.requires_grad_(), polygons).sum().backward()
