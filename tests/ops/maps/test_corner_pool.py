import math

import pytest
import torch
from torch.autograd import gradcheck

import detops

FORMATS = (torch.contiguous_format, torch.channels_last)
MODES = ("top", "bottom", "left", "right")


def random_map(*size, dtype=torch.float32, device="cpu", layout=FORMATS[0], seed=0):
    """Returns a feature map with few distinct values, so that many elements are equal."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=generator).mul(4).round().to(device, dtype)
    return x.contiguous(memory_format=layout).requires_grad_()


def by_cummax(x, mode):
    """Computes the running maximum with torch.cummax."""
    dim, reversed_dim = (2 if mode in ("top", "bottom") else 3), mode in ("top", "left")
    y = x.flip(dim) if reversed_dim else x
    pooled = torch.cummax(y, dim).values
    return pooled.flip(dim) if reversed_dim else pooled


def with_gradient(call, x, mode):
    output = call(x, mode)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, x, grad)]


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1), (2, 3, 9, 11), (1, 17, 33, 16), (1, 2, 1, 40), (3, 1, 40, 1)]
)
def test_corner_pool_matches_cummax(isa, device, size, mode, layout):
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-13)):
        x = random_map(*size, dtype=dtype, device=device, layout=layout)
        ours, theirs = (
            with_gradient(detops.corner_pool, x, mode),
            with_gradient(by_cummax, x, mode),
        )
        assert ours[0].is_contiguous(memory_format=layout) and torch.equal(ours[0], theirs[0])
        torch.testing.assert_close(ours[1], theirs[1], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_nonfinite_values_match_cummax(isa, device, mode):
    x = random_map(1, 2, 20, 23, device=device).detach()
    random_values = torch.rand(x.shape, generator=torch.Generator().manual_seed(3))
    x[random_values > 0.9] = -math.inf
    x[random_values > 0.96] = math.nan
    x[random_values > 0.98] = math.inf
    x.requires_grad_()
    ours, theirs = (
        with_gradient(detops.corner_pool, x, mode),
        with_gradient(by_cummax, x, mode),
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)
    lowest = torch.full((1, 1, 5, 5), -math.inf, device=device)
    assert torch.equal(detops.corner_pool(lowest, mode), lowest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("mode", MODES)
def test_half_precision_rounds_once(isa, device, dtype, layout, mode):
    x = random_map(2, 5, 19, 37, dtype=dtype, device=device, layout=layout)
    y = x.detach().float().requires_grad_()
    ours, single = detops.corner_pool(x, mode), detops.corner_pool(y, mode)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    (grad_x,) = torch.autograd.grad(ours, x, grad)
    (grad_y,) = torch.autograd.grad(single, y, grad.float())
    assert grad_x.dtype == dtype and torch.equal(grad_x, grad_y.to(dtype))


def test_first_derivative_passes_gradcheck_and_second_raises(device):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 4, 5, generator=generator, dtype=torch.float64).to(device)
    x.requires_grad_()
    for mode in MODES:
        assert gradcheck(lambda x, m=mode: detops.corner_pool(x, m), (x,))
    output = detops.corner_pool(x, "top").square().sum()
    (grad,) = torch.autograd.grad(output, x, create_graph=True)
    with pytest.raises(RuntimeError, match="corner_pool_backward is not implemented"):
        grad.sum().backward()


def test_any_layout_matches_cummax(device):
    x = random_map(2, 6, 8, 10, device=device).detach()
    for view in (x[:, ::2], x[..., 1:7], x.transpose(2, 3), x[:1].expand(3, -1, -1, -1)):
        for mode in MODES:
            y = view.detach().requires_grad_()
            for a, b in zip(with_gradient(detops.corner_pool, y, mode),
                            with_gradient(by_cummax, y, mode), strict=True):  # fmt: skip
                torch.testing.assert_close(a, b)


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    x = random_map(2, 64, 40, 50)
    for mode in MODES:
        one, two = two_threads(lambda m=mode: with_gradient(detops.corner_pool, x, m))
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("size", [(0, 3, 4, 5), (2, 0, 4, 5), (2, 3, 0, 5), (2, 3, 4, 0)])
def test_empty_input_gives_empty_results(device, poison, size):
    for mode in MODES:
        found = with_gradient(detops.corner_pool, random_map(*size, device=device), mode)
        assert found[0].shape == found[1].shape == size


@pytest.mark.slow
def test_op_and_module_pass_opcheck_and_vmap():
    x = random_map(2, 3, 5, 6).detach()
    for mode in MODES:
        module = detops.CornerPool(mode)
        expected = detops.corner_pool(x, mode)
        assert torch.equal(module(x), expected) and repr(module) == f"CornerPool(mode={mode})"
        torch.library.opcheck(torch.ops.detops.corner_pool.default, (x, mode))
        torch.library.opcheck(torch.ops.detops.corner_pool_forward.default, (x, mode))
        args = (expected, x, expected, mode)
        torch.library.opcheck(torch.ops.detops.corner_pool_backward.default, args)
        batched = torch.vmap(module)(torch.stack([x, 2 * x]))
        assert torch.equal(batched, torch.stack([expected, 2 * expected]))


def test_errors_name_the_bad_argument():
    with pytest.raises(RuntimeError, match="mode must be top, bottom, left or right, got"):
        detops.corner_pool(torch.zeros(1, 1, 2, 2), "up")
    with pytest.raises(RuntimeError, match=r"detops.corner_pool: input must be \[N, C, H, W\]"):
        detops.corner_pool(torch.zeros(2, 2), "top")
