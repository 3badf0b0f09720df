import math

import pytest
import reference
import torch
from torch.autograd import gradcheck

import detops
from detops import _C


def sets(batch, n, m, dtype=torch.float32, device="cpu", grid=0):
    generator = torch.Generator().manual_seed(batch + n + m)
    a, b = (torch.rand(batch, count, 2, generator=generator) * 40 for count in (n, m))
    if grid:  # gives ties and coinciding points
        a, b = (a / grid).round() * grid, (b / grid).round() * grid
    return a.to(device, dtype), b.to(device, dtype)


SIZES = ((1, 1, 1), (1, 9, 9), (2, 1, 40), (3, 17, 16), (2, 33, 5), (1, 600, 31), (4, 8, 300))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grid", [0, 8])
def test_chamfer_distance_matches_reference(dtype, grid, device, isa):
    for size in SIZES:
        a, b = sets(*size, dtype, device, grid)
        found = detops.chamfer_distance(a, b)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert [x.dtype for x in found] == [wide, wide, torch.int64, torch.int64]
        rounded = [x.cpu() for x in found]
        expected = reference.chamfer_distance(a.cpu(), b.cpu())
        for x, y in zip(rounded[:2], expected[:2], strict=True):
            torch.testing.assert_close(x.double(), y, rtol=1e-5, atol=1e-6)
        if grid:  # exact distances, so the first of equals is exact, too
            assert torch.equal(rounded[2], expected[2]) and torch.equal(rounded[3], expected[3])


def test_chamfer_distance_passes_gradcheck(device):
    for size in SIZES[:5]:
        a, b = (x.requires_grad_() for x in sets(*size, torch.double, device))
        assert gradcheck(lambda a, b: detops.chamfer_distance(a, b)[:2], (a, b))
        assert gradcheck(lambda a, b: detops.chamfer_distance(a, b)[1], (a, b))


def test_gradient_accumulates_at_shared_neighbours(device, isa):
    a, b = (x.requires_grad_() for x in sets(2, 200, 7, device=device))
    dist1, dist2, idx1, idx2 = detops.chamfer_distance(a, b)
    weights = torch.rand_like(dist1), torch.rand_like(dist2)
    found = torch.autograd.grad((dist1, dist2), (a, b), weights)
    pairs = (
        (a - b.gather(1, idx1[..., None].expand(-1, -1, 2))).square().sum(-1),
        (b - a.gather(1, idx2[..., None].expand(-1, -1, 2))).square().sum(-1),
    )
    for x, y in zip(found, torch.autograd.grad(pairs, (a, b), weights), strict=True):
        torch.testing.assert_close(x, y)
    assert not idx1.requires_grad


def test_points_without_finite_distance_stay_unmatched(device):
    points = torch.tensor([[math.nan, 0], [math.inf, 1], [1e30, 0], [0, 0], [3, 4]], device=device)
    a = points[None].clone().requires_grad_()
    b = points[None, [0, 4, 1]].clone().requires_grad_()
    dist1, dist2, idx1, idx2 = detops.chamfer_distance(a, b)
    assert idx1.tolist() == [[-1, -1, -1, 1, 1]]
    assert dist1.tolist() == [[math.inf] * 3 + [25, 0]]
    assert idx2.tolist() == [[-1, 4, -1]] and dist2.tolist() == [[math.inf, 0, math.inf]]
    grad_outputs = torch.ones_like(dist1), torch.zeros_like(dist2)
    grads = torch.autograd.grad((dist1, dist2), (a, b), grad_outputs)
    assert (grads[0][0, :3] == 0).all() and grads[0][0, 3].tolist() == [-6, -8]
    assert grads[1][0, 1].tolist() == [6, 8]


def test_empty_sets_give_infinite_distances(device):
    for size in ((0, 3, 4), (2, 0, 3), (2, 3, 0), (2, 0, 0)):
        a, b = (torch.zeros(size[0], n, 2, device=device, requires_grad=True) for n in size[1:])
        dist1, dist2, idx1, idx2 = detops.chamfer_distance(a, b)
        assert dist1.shape == idx1.shape == size[:2]
        assert dist2.shape == idx2.shape == (size[0], size[2])
        for dist, idx in ((dist1, idx1), (dist2, idx2)):
            assert (dist == math.inf).all() and (idx == -1).all()
        (dist1.sum() + dist2.sum()).backward()
        assert (a.grad == 0).all() and (b.grad == 0).all()


def test_backward_ignores_indices_out_of_range(device):
    a, b = sets(1, 4, 3, device=device)
    idx1 = torch.tensor([[5, -7, 2**40, 2]], device=device)
    idx2 = torch.tensor([[4, -1, 2**62]], device=device)
    grads = torch.ones(1, 4, device=device), torch.ones(1, 3, device=device)
    grad_a, grad_b = _C.chamfer_distance_backward(*grads, a, b, idx1, idx2)
    assert (grad_a[0, :3] == 0).all()
    torch.testing.assert_close(grad_a[0, 3], 2 * (a[0, 3] - b[0, 2]))
    assert (grad_b[0, :2] == 0).all()
    torch.testing.assert_close(grad_b[0, 2], 2 * (b[0, 2] - a[0, 3]))


def test_chamfer_distance_accepts_any_layout_and_mixed_dtypes(device):
    a, b = sets(3, 21, 18, device=device)
    expected = detops.chamfer_distance(a, b)
    strided = a.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    for x, y in zip(
        detops.chamfer_distance(strided, b[:, :, [1, 0]].flip(2)), expected, strict=True
    ):
        assert torch.equal(x, y)
    assert detops.chamfer_distance(a, b.double())[0].dtype == torch.float64
    half = a.half().requires_grad_()
    detops.chamfer_distance(half, b)[0].sum().backward()
    assert half.grad.dtype == torch.float16
    distant = torch.full((1, 1, 2), 300.0, device=device).half()
    # 180,000 exceeds half precision.
    assert detops.chamfer_distance(distant, distant * 0)[0].item() == 180_000


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    a, b = (x.requires_grad_() for x in sets(5, 1500, 900))

    def forward_and_backward():
        dist1, dist2, *indices = detops.chamfer_distance(a, b)
        return dist1, dist2, *indices, *torch.autograd.grad(dist1.sum() + dist2.sum(), (a, b))

    for x, y in zip(*two_threads(forward_and_backward), strict=True):
        assert torch.equal(x, y)


@pytest.mark.slow
def test_chamfer_distance_passes_opcheck_compiles_and_vmaps():
    a, b = sets(2, 5, 3)
    forward = torch.library.opcheck
    forward(_C.chamfer_distance.default, (a, b))
    forward(_C.chamfer_distance.default, (a.requires_grad_(), b))
    forward(_C.chamfer_distance_forward.default, (a.detach(), b))
    _, _, idx1, idx2 = detops.chamfer_distance(a, b)
    grads = torch.rand(2, 5), torch.rand(2, 3)
    forward(_C.chamfer_distance_backward.default, (*grads, a.detach(), b, idx1, idx2))
    compiled = torch.compile(
        detops.chamfer_distance, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    (found,) = torch.autograd.grad(compiled(a, b)[0].sum(), a)
    (expected,) = torch.autograd.grad(detops.chamfer_distance(a, b)[0].sum(), a)
    torch.testing.assert_close(found, expected)
    a = a.detach()
    stacked = torch.stack([a, a + torch.rand(2, 5, 2)])
    found = torch.vmap(detops.chamfer_distance, in_dims=(0, None))(stacked, b)
    for i in range(2):
        for x, y in zip(found, detops.chamfer_distance(stacked[i], b), strict=True):
            assert torch.equal(x[i], y)


A = torch.rand(2, 4, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(A[0], A), r"points1 must be \[B, N, 2\], got \[4, 2\]"),
        (lambda f: f(A[..., :1], A), r"points1 must be \[B, N, 2\], got \[2, 4, 1\]"),
        (lambda f: f(A, A[:1]), r"points2 must be \[2, M, 2\], got \[1, 4, 2\]"),
        (lambda f: f(A, A.long()), "points2 must be float32.*got int64"),
        (lambda f: f(A, A.to("meta")), "points2 must be on the device of points1"),
    ],
)
def test_chamfer_distance_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.chamfer_distance: {message}"):
        call(detops.chamfer_distance)
