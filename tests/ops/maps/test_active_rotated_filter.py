import pytest
import reference_oriented as reference
import torch
from torch.autograd import gradcheck, gradgradcheck

import detops
from detops.bench.active_rotated_filter import plain_active_rotated_filter

SIZES = [(1, 1, 1, 1, 1, 1), (3, 2, 8, 3, 3, 8), (5, 7, 4, 1, 1, 4), (2, 3, 1, 3, 5, 2)]


def filters(outputs, inputs, orientations, height, width, *, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(outputs, inputs, orientations, height, width, generator=generator)
    return x.to(device, dtype).requires_grad_()


def permutations(orientations, height, width, rotations, device="cpu"):
    """Returns indices that give every position one weight."""
    generator = torch.Generator().manual_seed(1)
    entries = orientations * height * width
    columns = [torch.randperm(entries, generator=generator) for _ in range(rotations)]
    return (torch.stack(columns, 1) + 1).view(orientations, height, width, rotations).to(device)


def with_collisions(orientations, height, width, rotations, device="cpu"):
    """Returns indices that give some positions several weights and others none."""
    generator = torch.Generator().manual_seed(2)
    size, max_index = (orientations, height, width, rotations), orientations * height * width
    return torch.randint(1, max_index + 1, size, generator=generator).to(device)


def with_gradient(x, indices):
    rotated = detops.active_rotated_filter(x, indices)
    grad = torch.randn(rotated.shape, generator=torch.Generator().manual_seed(3)).to(rotated)
    return [rotated.detach(), torch.autograd.grad(rotated, x, grad)[0]], grad


@pytest.mark.parametrize("make", [permutations, with_collisions])
@pytest.mark.parametrize("size", SIZES)
def test_active_rotated_filter_matches_the_reference(device, make, size):
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        x, indices = filters(*size[:5], dtype=dtype, device=device), make(*size[2:], device=device)
        (rotated, grad_x), grad = with_gradient(x, indices)
        expected = reference.active_rotated_filter(x.detach().cpu(), indices.cpu())
        assert rotated.dtype == grad_x.dtype == dtype
        torch.testing.assert_close(
            rotated.double().cpu(), expected, rtol=tolerance, atol=10 * tolerance
        )
        expected_grad = reference_gradient(x.detach(), indices.cpu(), grad.double().cpu())
        torch.testing.assert_close(
            grad_x.double().cpu(), expected_grad, rtol=tolerance, atol=20 * tolerance
        )


def reference_gradient(x, indices, grad):
    """Sums the gradients of the positions of each weight."""
    outputs, inputs, orientations, height, width = x.shape
    rotations, entries = indices.size(3), orientations * height * width
    grad = grad.view(outputs, rotations, inputs, entries)
    grad_x = torch.zeros(outputs, inputs, entries, dtype=torch.double)
    for entry, row in enumerate(indices.reshape(entries, rotations).tolist()):
        for rotation, position in enumerate(row):
            grad_x[:, :, entry] += grad[:, rotation, :, position - 1]
    return grad_x.view_as(x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_indices_may_have_any_integer_dtype(device, dtype):
    x, indices = filters(2, 3, 4, 3, 3, device=device), permutations(4, 3, 3, 8, device=device)
    expected = detops.active_rotated_filter(x, indices)
    assert torch.equal(detops.active_rotated_filter(x, indices.to(dtype)), expected)


def test_benchmark_baseline_matches_active_rotated_filter():
    x, indices = filters(4, 3, 8, 3, 3), permutations(8, 3, 3, 8)
    source = (indices.view(72, 8) - 1).argsort(0).t().contiguous()
    expected = plain_active_rotated_filter(x, source)
    assert torch.equal(detops.active_rotated_filter(x, indices), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("make", [permutations, with_collisions])
def test_half_precision_rounds_once(device, dtype, make):
    x, indices = filters(5, 3, 8, 3, 3, dtype=dtype, device=device), make(8, 3, 3, 8, device=device)
    y = x.detach().float().requires_grad_()
    (ours, grad_x), grad = with_gradient(x, indices)
    single = detops.active_rotated_filter(y, indices)
    (grad_y,) = torch.autograd.grad(single, y, grad.float())
    assert ours.dtype == grad_x.dtype == dtype
    assert torch.equal(ours, single.to(dtype)) and torch.equal(grad_x, grad_y.to(dtype))


def test_derivatives_pass_gradcheck(device):
    x = filters(2, 2, 2, 2, 1, dtype=torch.float64, device=device)
    for make in (permutations, with_collisions):
        indices = make(2, 2, 1, 3, device=device)
        assert gradcheck(lambda x, i=indices: detops.active_rotated_filter(x, i), (x,))
        assert gradgradcheck(lambda x, i=indices: detops.active_rotated_filter(x, i), (x,))


def test_strided_arguments_give_the_same_results(device):
    x, indices = filters(4, 6, 8, 3, 3, device=device), permutations(8, 3, 3, 8, device=device)
    x = x.detach()
    expected = detops.active_rotated_filter(x, indices)
    for view, of in (
        (x[:, ::2], x[:, ::2].clone()),
        (x.transpose(0, 1), x.transpose(0, 1).clone()),
    ):
        found = detops.active_rotated_filter(view, indices)
        assert torch.equal(found, detops.active_rotated_filter(of, indices))
    strided = torch.stack([indices, indices], -1)[..., 0]
    assert torch.equal(detops.active_rotated_filter(x, strided), expected)


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    x = filters(40, 20, 8, 3, 3)
    for make in (permutations, with_collisions):
        indices = make(8, 3, 3, 8)
        one, two = two_threads(lambda i=indices: with_gradient(x, i)[0])
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("size", [(0, 3, 4, 3, 3, 2), (2, 0, 4, 3, 3, 2), (2, 3, 4, 0, 3, 2)])
def test_empty_arguments_give_empty_results(device, poison, size):
    indices = torch.ones(size[2:], dtype=torch.int64, device=device)
    (rotated, grad_x), _ = with_gradient(filters(*size[:5], device=device), indices)
    assert rotated.numel() == grad_x.numel() == 0
    none = torch.ones(4, 3, 3, 0, dtype=torch.int64, device=device)
    (rotated, grad_x), _ = with_gradient(filters(2, 3, 4, 3, 3, device=device), none)
    assert rotated.shape == (0, 12, 3, 3) and not grad_x.any()


@pytest.mark.parametrize("position", [0, -1, 5, 2**31, 2**32 + 1, -(2**63), 2**63 - 1])
def test_index_out_of_range_raises_or_drops_the_weight(device, values_are_checked, position):
    x = filters(1, 2, 1, 2, 2, device=device).detach()
    indices = torch.tensor([2, 4, 1, position], device=device).view(1, 2, 2, 1)
    grad = torch.ones(1, 2, 2, 2, device=device)
    backward = torch.ops.detops.active_rotated_filter_backward
    if values_are_checked:
        with pytest.raises(
            RuntimeError,
            match=rf"active_rotated_filter: indices must be in \[1, 4\], got {position}$",
        ):
            detops.active_rotated_filter(x, indices)
        with pytest.raises(RuntimeError, match="active_rotated_filter_backward: indices must be"):
            backward(grad, indices, 1, 2)
        return
    rotated = detops.active_rotated_filter(x, indices)  # drops the weight
    expected = detops.active_rotated_filter(
        x, torch.tensor([2, 4, 1, 3]).view(1, 2, 2, 1).to(x.device)
    )
    expected[..., 1, 0] = 0
    assert torch.equal(rotated, expected)
    grad_x = backward(grad, indices, 1, 2)
    assert grad_x[..., 1, 1].sum() == 0 and grad_x.sum() == 6


@pytest.mark.slow
def test_op_passes_opcheck_and_supports_vmap():
    x, indices = filters(2, 3, 4, 3, 3).detach(), permutations(4, 3, 3, 8)
    expected = detops.active_rotated_filter(x, indices)
    for op in ("active_rotated_filter", "active_rotated_filter_forward"):
        torch.library.opcheck(getattr(torch.ops.detops, op).default, (x, indices))
    args = (expected, indices, 2, 3)
    torch.library.opcheck(torch.ops.detops.active_rotated_filter_backward.default, args)
    batched = torch.stack([x, 2 * x])
    found = torch.vmap(detops.active_rotated_filter, in_dims=(0, None))(batched, indices)
    assert torch.equal(found, torch.stack([expected, 2 * expected]))
    batch_of_indices = torch.stack([indices, indices.flip(3)])
    found = torch.vmap(detops.active_rotated_filter, in_dims=(None, 0))(x, batch_of_indices)
    assert torch.equal(found[1], detops.active_rotated_filter(x, batch_of_indices[1]))
    assert torch.equal(found[0], expected)

    def gradient(x, indices):
        return torch.func.grad(lambda x: detops.active_rotated_filter(x, indices).sin().sum())(x)

    found = torch.vmap(gradient, in_dims=(0, None))(batched, indices)
    torch.testing.assert_close(found[1], gradient(2 * x, indices))
    found = torch.vmap(gradient, in_dims=(None, 0))(x, batch_of_indices)
    torch.testing.assert_close(found[1], gradient(x, batch_of_indices[1]))


def test_errors_name_the_bad_argument():
    x, indices = filters(2, 3, 4, 3, 3), permutations(4, 3, 3, 8)
    with pytest.raises(RuntimeError, match=r"indices must be \[4, 3, 3, rotations\], got"):
        detops.active_rotated_filter(x, indices[:2])
    with pytest.raises(RuntimeError, match="detops.active_rotated_filter: indices must be"):
        detops.active_rotated_filter(x, indices.float())
    with pytest.raises(RuntimeError, match=r"input must be \[outputs, inputs, orientations, H, W"):
        detops.active_rotated_filter(x[0], indices)
