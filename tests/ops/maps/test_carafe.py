import pytest
import reference_maps as reference
import torch
from torch.autograd import gradcheck

import detops
from detops.bench.carafe import plain_carafe

# Images, channels, height, width; kernel, groups, scale.
CASES = (
    ((2, 8, 5, 7), (5, 1, 2)),
    ((1, 1, 1, 1), (5, 1, 2)),
    ((1, 1, 3, 17), (3, 1, 1)),
    ((2, 6, 4, 33), (3, 2, 2)),
    ((1, 15, 2, 16), (1, 3, 3)),
    ((1, 5, 3, 2), (7, 5, 4)),
    ((1, 4, 1, 40), (5, 1, 5)),
)


def inputs(shape, sizes, dtype=torch.float32, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    kernel, groups, scale = sizes
    images, _, height, width = shape
    features = torch.randn(shape, generator=generator)
    masks = torch.randn(
        images, groups * kernel**2, scale * height, scale * width, generator=generator
    )
    return [t.to(device, dtype).requires_grad_() for t in (features, masks)]


def with_gradients(call, features, masks, sizes):
    output = call(features, masks, *sizes)
    grad = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output)
    return [output.detach(), *torch.autograd.grad(output, (features, masks), grad)]


@pytest.mark.parametrize(("shape", "sizes"), CASES)
def test_carafe_matches_the_reference(isa, device, shape, sizes):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        args = inputs(shape, sizes, dtype, device)
        wide = [t.detach().double().cpu().requires_grad_() for t in args]
        expected = with_gradients(reference.carafe, *wide, sizes)
        found = with_gradients(detops.carafe, *args, sizes)
        for a, b in zip(found, expected, strict=True):
            assert a.dtype == dtype
            torch.testing.assert_close(a.double().cpu(), b, rtol=tolerance, atol=tolerance * 10)


def test_benchmark_baseline_matches_carafe():
    for shape, sizes in CASES:
        args = inputs(shape, sizes)
        torch.testing.assert_close(detops.carafe(*args, *sizes), plain_carafe(*args, *sizes))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("shape", "sizes"), [CASES[0], CASES[3]])
def test_half_precision_rounds_once(isa, device, dtype, shape, sizes):
    half = inputs(shape, sizes, dtype, device)
    wide = [t.detach().float().requires_grad_() for t in half]
    ours, single = detops.carafe(*half, *sizes), detops.carafe(*wide, *sizes)
    assert torch.equal(ours, single.to(dtype))
    grad = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(ours)
    ours = torch.autograd.grad(ours, half, grad)
    for a, b in zip(ours, torch.autograd.grad(single, wide, grad.float()), strict=True):
        assert a.dtype == dtype and torch.equal(a, b.to(dtype))


def test_layouts_and_mixed_dtypes_give_the_same_results(device):
    shape, sizes = CASES[0]
    features, masks = inputs(shape, sizes, device=device)
    expected = with_gradients(detops.carafe, features, masks, sizes)
    channels_last = [
        t.detach().contiguous(memory_format=torch.channels_last).requires_grad_()
        for t in (features, masks)
    ]
    wide = [features, masks.detach().double().requires_grad_()]
    for args in (channels_last, wide):
        for a, b in zip(with_gradients(detops.carafe, *args, sizes), expected, strict=True):
            torch.testing.assert_close(a, b.to(a.dtype), rtol=0, atol=0)


def test_gradient_alone_equals_gradient_of_both(device):
    shape, sizes = CASES[0]
    args = inputs(shape, sizes, device=device)
    batched = torch.autograd.grad(detops.carafe(*args, *sizes).square().sum(), args)
    for i in range(2):
        some = [t if i == j else t.detach() for j, t in enumerate(args)]
        alone = torch.autograd.grad(detops.carafe(*some, *sizes).square().sum(), some[i])
        assert torch.equal(alone[0], batched[i])


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    sizes = (5, 2, 2)
    args = inputs((2, 24, 17, 30), sizes)
    one, two = two_threads(lambda: with_gradients(detops.carafe, *args, sizes))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 3, 3), (2, 0, 3, 3), (2, 4, 0, 3), (2, 4, 3, 0)])
def test_empty_input_gives_empty_results(device, poison, shape):
    sizes = (3, 1, 2)
    found = with_gradients(detops.carafe, *inputs(shape, sizes, device=device), sizes)
    assert found[0].numel() == found[1].numel() == 0 and found[2].abs().sum() == 0


def test_first_derivative_passes_gradcheck_and_second_raises(device):
    sizes = (3, 2, 2)
    args = inputs((1, 4, 2, 3), sizes, torch.float64, device)
    assert gradcheck(lambda f, m: detops.carafe(f, m, *sizes), args)
    (slope,) = torch.autograd.grad(detops.carafe(*args, *sizes).sum(), args[0], create_graph=True)
    with pytest.raises(RuntimeError, match="carafe_backward is not implemented"):
        slope.sum().backward()


@pytest.mark.slow
def test_op_and_module_pass_opcheck_and_vmap():
    shape, sizes = CASES[3]
    features, masks = (t.detach() for t in inputs(shape, sizes))
    torch.library.opcheck(torch.ops.detops.carafe.default, (features, masks, *sizes))
    torch.library.opcheck(torch.ops.detops.carafe_forward.default, (features, masks, *sizes))
    expected = detops.carafe(features, masks, *sizes)
    torch.library.opcheck(
        torch.ops.detops.carafe_backward.default, (expected, features, masks, *sizes, False, True)
    )
    module = detops.CARAFE(*sizes)
    assert torch.equal(module(features, masks), expected) and "scale_factor=2" in repr(module)
    batched = torch.vmap(module, in_dims=(0, None))(torch.stack([features, 2 * features]), masks)
    torch.testing.assert_close(batched, torch.stack([expected, 2 * expected]))


def test_errors_name_the_bad_argument():
    features, masks = torch.zeros(1, 4, 3, 3), torch.zeros(1, 9, 6, 6)
    for sizes, message in (
        ((4, 1, 2), "detops.carafe: kernel_size must be odd, got 4"),
        ((3, 3, 2), r"detops.carafe: features must have a multiple of group_size \(3\)"),
        ((3, 1, 3), r"detops.carafe: masks must be \[1, 9, 9, 9\], got \[1, 9, 6, 6\]"),
        ((3, 0, 2), "detops.carafe: group_size must be at least 1"),
    ):
        with pytest.raises(RuntimeError, match=message):
            detops.carafe(features, masks, *sizes)
