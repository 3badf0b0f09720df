import math

import pytest
import reference_maps as reference
import torch
from torch.autograd import gradcheck

import detops
from detops.bench.masked_conv2d import plain_masked_conv2d

# Images, channels, height, width; outputs, kernel, stride, padding.
CASES = (
    ((2, 5, 9, 13), 13, (3, 3), (1, 1), (1, 1)),
    ((1, 1, 1, 1), 1, (1, 1), (1, 1), (0, 0)),
    ((1, 3, 8, 70), 8, (3, 1), (1, 1), (1, 0)),
    ((2, 4, 7, 9), 9, (2, 5), (2, 3), (0, 4)),
    ((1, 2, 3, 3), 3, (5, 5), (1, 1), (2, 3)),
)


def inputs(
    shape, outputs, kernel, stride, padding, fraction=0.4, dtype=torch.float32, device="cpu"
):
    generator = torch.Generator().manual_seed(0)
    images, channels, *size = shape
    output_size = [
        (n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True)
    ]
    features = torch.randn(shape, generator=generator)
    mask = torch.rand(images, *output_size, generator=generator) - (1 - fraction)
    weight = torch.randn(outputs, channels, *kernel, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    return [t.to(device, dtype) for t in (features, mask, weight, bias)]


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("case", CASES)
def test_masked_conv2d_matches_the_reference(isa, device, case, fraction):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        features, mask, weight, bias = inputs(*case, fraction, dtype, device)
        for offset in (bias, None):
            found = detops.masked_conv2d(features, mask, weight, offset, *case[3:])
            wide = (None if t is None else t.cpu() for t in (features, mask, weight, offset))
            expected = reference.masked_conv2d(*wide, *case[3:])
            assert found.dtype == dtype
            torch.testing.assert_close(found.double().cpu(), expected, rtol=tolerance, atol=1e-4)


def test_benchmark_baseline_matches_masked_conv2d():
    features, mask, weight, bias = inputs(*CASES[0])
    plain = plain_masked_conv2d(features, mask > 0, weight, bias)
    torch.testing.assert_close(detops.masked_conv2d(features, mask, weight, bias, 1, 1), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(isa, device, dtype):
    half = inputs(*CASES[0], dtype=dtype, device=device)
    wide = [t.float() for t in half]
    ours, single = (detops.masked_conv2d(*args, padding=1) for args in (half, wide))
    assert ours.dtype == dtype and torch.equal(ours, single.to(dtype))


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int64, torch.float16, torch.uint16, torch.uint32, torch.uint64],
)
def test_masks_of_any_dtype_give_the_same_results(device, dtype):
    features, mask, weight, bias = inputs(*CASES[0], device=device)
    mask = mask > 0
    expected = detops.masked_conv2d(features, mask, weight, bias, padding=1)
    leaf = features.clone().requires_grad_()
    found = detops.masked_conv2d(leaf, mask.to(dtype), weight, bias, padding=1)
    assert torch.equal(found, expected)
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    where = detops.masked_conv2d(leaf, mask, weight, bias, padding=1)
    assert torch.equal(gradient, torch.autograd.grad(where.sum(), leaf)[0])
    if dtype == torch.int64:
        found = detops.masked_conv2d(features, mask.long() * 2 - 1, weight, bias, padding=1)
        assert torch.equal(found, expected)


def test_nan_in_or_under_the_mask_gives_zero(device):
    mask = torch.tensor([[[math.nan, 1.0], [math.inf, -math.inf]]], device=device)
    ones = torch.ones(1, 1, 2, 2, device=device)
    found = detops.masked_conv2d(ones, mask, torch.ones(1, 1, 1, 1, device=device))
    assert found.flatten().tolist() == [0, 1, 1, 0]
    # A masked position is 0 for any input.
    found = detops.masked_conv2d(ones * math.nan, mask * 0, torch.ones(1, 1, 1, 1, device=device))
    assert found.abs().sum() == 0


def test_layouts_and_mixed_dtypes_give_the_same_results(device):
    features, mask, weight, bias = inputs(*CASES[0], device=device)
    expected = detops.masked_conv2d(features, mask, weight, bias, padding=1)
    memory_format = torch.channels_last
    channels_last = [t.contiguous(memory_format=memory_format) for t in (features, weight)]
    vectors = mask.mT.contiguous().mT, bias.repeat_interleave(2)[::2]
    found = detops.masked_conv2d(
        channels_last[0], vectors[0], channels_last[1], vectors[1], padding=1
    )
    assert torch.equal(found, expected)
    found = detops.masked_conv2d(features, mask, weight.double(), bias.double(), padding=1)
    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    args = inputs((2, 30, 40, 50), 20, (3, 3), (1, 1), (1, 1))
    one, two = two_threads(lambda: detops.masked_conv2d(*args, padding=1))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("shape", "outputs"),
    [((0, 2, 4, 4), 3), ((2, 0, 4, 4), 3), ((2, 2, 4, 4), 0), ((1, 2, 0, 0), 3)],
)
def test_empty_arguments_give_the_bias_or_empty_results(device, poison, shape, outputs):
    features, mask, weight, bias = inputs(shape, outputs, (3, 3), (1, 1), (3, 3), device=device)
    found = detops.masked_conv2d(features, mask, weight, bias, padding=3)
    expected = torch.where((mask > 0)[:, None], bias[:, None, None], 0.0)
    assert found.shape == (shape[0], outputs, shape[2] + 4, shape[3] + 4)
    if shape[1] == 0 or shape[2] == 0:
        assert torch.equal(found, expected)


@pytest.mark.slow
def test_op_and_module_pass_opcheck_and_vmap():
    features, mask, weight, bias = inputs(*CASES[0])
    module = detops.MaskedConv2d(5, 13, 3, padding=1)
    with torch.no_grad():
        module.weight.copy_(weight)
        module.bias.copy_(bias)
    expected = detops.masked_conv2d(features, mask, weight, bias, padding=1)
    assert torch.equal(module(features, mask), expected)
    full = torch.nn.functional.conv2d(features, weight, bias, padding=1)
    torch.testing.assert_close(module(features), full)
    args = (features, mask, weight, bias, [1, 1], [1, 1])
    torch.library.opcheck(torch.ops.detops.masked_conv2d.default, args)
    torch.library.opcheck(torch.ops.detops.masked_conv2d_forward.default, args)

    def call(features, weight):
        return detops.masked_conv2d(features, mask, weight, bias, 1, 1)

    weights, batch = torch.stack([weight, -weight]), torch.stack([features, 2 * features])
    for dims, batch_arguments in (((0, None), (batch, weight)), ((0, 0), (batch, weights))):
        found = torch.vmap(call, in_dims=dims)(*batch_arguments)
        per_entry = [
            [x if d is None else x[i] for x, d in zip(batch_arguments, dims, strict=True)]
            for i in (0, 1)
        ]
        assert torch.equal(found, torch.stack([call(*e) for e in per_entry]))


@pytest.mark.parametrize("case", CASES)
def test_derivatives_pass_gradcheck(device, case):
    features, mask, weight, bias = inputs(*case, dtype=torch.float64, device=device)
    leaves = [t.requires_grad_() for t in (features, weight, bias)]
    assert gradcheck(lambda x, w, b: detops.masked_conv2d(x, mask, w, b, *case[3:]), leaves,
                     fast_mode=True)  # fmt: skip


def test_gradients_keep_their_dtypes(device):
    features, mask, weight, bias = inputs(*CASES[0], device=device)
    half = (
        features.bfloat16().requires_grad_(),
        weight.requires_grad_(),
        bias.half().requires_grad_(),
    )
    output = detops.masked_conv2d(half[0], mask, *half[1:], padding=1)
    gradients = torch.autograd.grad(output.float().square().sum(), half)
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float16]
    # A masked position gives a gradient of zero.
    (none,) = torch.autograd.grad(
        detops.masked_conv2d(half[0], mask * 0, *half[1:], padding=1).sum(), half[0]
    )
    assert none.abs().sum() == 0


def test_errors_name_the_bad_argument():
    features, mask, weight, bias = inputs(*CASES[0])
    for args, message in (
        ((features, mask, weight, bias), r"mask must be \[2, 7, 11\], got \[2, 9, 13\]"),
        ((features, mask, weight[:, :2], bias, 1, 1), r"weight must be \[O, 5, kh, kw\]"),
        ((features, mask, weight, bias[:4], 1, 1), r"bias must be \[13\], got \[4\]"),
        ((features, mask, weight, bias, 0, 1), "stride must be at least 1"),
        ((features[:, :, :1], mask, weight, bias), r"the kernel \(3 x 3\) must fit into"),
    ):
        with pytest.raises(RuntimeError, match=f"detops.masked_conv2d: {message}"):
            detops.masked_conv2d(*args)
