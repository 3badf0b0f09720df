"""winograd_conv2d, and packed_conv2d with the kernels, against a convolution in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional as F

import detops

# Tolerance of a sum of products: Winograd rounds more than adding the products one by one.
ATOL = {torch.float32: 2e-5, torch.float64: 1e-13}
LAYOUTS = (torch.contiguous_format, torch.channels_last)
raw = torch.ops.detops


def inputs(shape, outputs, kernel=3, dtype=torch.float32, layout=LAYOUTS[0], seed=0):
    """Returns a feature map, weights with sums around 1, and biases."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator).to(dtype, memory_format=layout)
    size = (outputs, shape[1], kernel, kernel)
    weight = torch.randn(size, generator=generator) / math.sqrt(max(1, shape[1]) * kernel**2)
    return x, weight.to(dtype), torch.randn(outputs, generator=generator).to(dtype)


# Fewer pixels than a tile, one to three pixels more than tiles, more channels than a vector, and
# more outputs than a panel.
SHAPES = (
    ((1, 1, 1, 1), 1),
    ((2, 3, 4, 5), 5),
    ((1, 17, 9, 8), 33),
    ((3, 8, 13, 3), 32),
    ((1, 40, 30, 31), 65),
    ((20, 5, 6, 7), 2),
    ((16, 17, 14, 14), 33),
    ((17, 3, 1, 9), 3),
    ((16, 2, 2, 2), 3),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_stride_of_a_single_row_is_ignored(device, dtype):
    shape, strides = (2, 4, 1, 5), (20, 1, 4, 4)
    x, weight, _ = inputs(shape, 17, dtype=dtype)
    unusual_strides = torch.empty_strided(shape, strides, dtype=dtype).copy_(x)
    x, unusual_strides, weight = (t.to(device) for t in (x, unusual_strides, weight))
    assert unusual_strides.stride() == strides or device == "cuda"
    expected = detops.winograd_conv2d(x, weight, None, (2, 1))
    assert torch.equal(detops.winograd_conv2d(unusual_strides, weight, None, (2, 1)), expected)
    grad = torch.randn_like(expected)
    gradients = (raw.winograd_conv2d_backward_weight(grad, t, [2, 1]) for t in (x, unusual_strides))
    assert torch.equal(*gradients)
    if device == "cpu":
        packed, options = raw.pack_conv2d_weight(weight), (17, [3, 3], [1, 1], [2, 1])
        results = (raw.packed_conv2d(t, packed, None, None, *options) for t in (x, unusual_strides))
        assert torch.equal(*results)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize(("shape", "outputs"), SHAPES)
def test_winograd_conv2d_matches_a_convolution(isa, device, shape, outputs, dtype, layout):
    x, weight, bias = inputs(shape, outputs, dtype=dtype, layout=layout)
    for padding in (1, (2, 1), 0):
        if padding == 0 and min(shape[2:]) < 3:
            continue
        for offset in (bias, None):
            arguments = (None if t is None else t.to(device) for t in (x, weight, offset))
            found = detops.winograd_conv2d(*arguments, padding)
            wide = (None if t is None else t.double() for t in (x, weight, offset))
            expected = F.conv2d(*wide, padding=padding)
            assert found.dtype == dtype
            assert found.is_contiguous(memory_format=layout)
            torch.testing.assert_close(
                found.double().cpu(), expected, rtol=0, atol=ATOL[dtype], check_stride=False
            )


@settings(max_examples=40)
@given(st.data())
def test_any_size_matches_a_convolution(data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731
    shape = (draw(0, 3), draw(1, 35), draw(1, 20), draw(1, 20))
    padding = (draw(1, 2), draw(1, 2))
    x, weight, bias = inputs(shape, draw(1, 40), layout=data.draw(st.sampled_from(LAYOUTS)))
    found = detops.winograd_conv2d(x, weight, bias, padding)
    expected = F.conv2d(x.double(), weight.double(), bias.double(), padding=padding)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=ATOL[torch.float32])


def test_zero_channels_give_the_bias_and_zero_outputs_are_empty(device):
    bias = torch.randn(2, device=device)
    found = detops.winograd_conv2d(*(bias.new_zeros(s) for s in ((1, 0, 2, 3), (2, 0, 3, 3))), bias)
    assert torch.equal(found, bias.view(1, 2, 1, 1).expand(1, 2, 2, 3))
    found = detops.winograd_conv2d(bias.new_zeros(1, 3, 2, 4), bias.new_zeros(0, 3, 3, 3))
    assert found.shape == (1, 0, 2, 4)


def test_error_stays_within_the_documented_bound(isa):
    x, weight, _ = inputs((1, 256, 40, 40), 64, layout=torch.channels_last)
    exact = F.conv2d(x.double(), weight.double(), padding=1)
    error = (detops.winograd_conv2d(x, weight).double() - exact).abs()
    assert error.mean() < 1.5e-6 and error.max() < 2e-5 and exact.std() > 0.9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_once(isa, dtype):
    half = inputs((2, 9, 7, 8), 6, dtype=dtype)
    single = detops.winograd_conv2d(*(t.float() for t in half))
    found = detops.winograd_conv2d(*half)
    assert found.dtype == dtype and torch.equal(found, single.to(dtype))
    mixed = detops.winograd_conv2d(half[0], *(t.float() for t in half[1:]))
    assert torch.equal(mixed, found)


def test_strided_views_give_the_same_results(isa, device):
    x, weight, bias = (t.to(device) for t in inputs((2, 6, 9, 11), 4))
    every_second = torch.randn(2, 12, 18, 11, device=device)[:, ::2, ::2]
    every_second.copy_(x)
    transposed = weight.transpose(0, 1).contiguous().transpose(0, 1)
    expected = detops.winograd_conv2d(x, weight, bias)
    assert torch.equal(detops.winograd_conv2d(every_second, transposed, bias), expected)


def test_nonfinite_values_stay_in_their_tile(isa):
    x, weight, bias = inputs((1, 4, 16, 16), 3)
    expected = detops.winograd_conv2d(x, weight, bias)
    for value in (math.nan, math.inf):
        corrupted = x.clone()
        corrupted[0, 1, 5, 6] = value
        found = detops.winograd_conv2d(corrupted, weight, bias)
        assert found[0, :, 4:8, 4:8].isnan().all()
        assert torch.equal(found[0, :, 8:], expected[0, :, 8:])


def test_image_gives_the_same_bits_alone_and_in_a_batch(isa):
    x, weight, bias = inputs((20, 7, 14, 9), 35, layout=torch.channels_last)
    together = detops.winograd_conv2d(x, weight, bias)
    for selection in (slice(0, 1), slice(3, 8)):
        assert torch.equal(detops.winograd_conv2d(x[selection], weight, bias), together[selection])


def test_derivatives_pass_gradcheck(isa):
    x, weight, bias = (t.requires_grad_() for t in inputs((2, 3, 5, 6), 4, dtype=torch.float64))
    for padding in (1, (0, 2)):
        assert gradcheck(lambda *a, p=padding: detops.winograd_conv2d(*a, p), (x, weight, bias))
    assert gradgradcheck(detops.winograd_conv2d, (x, weight, bias))


def test_gradients_match_a_convolution(device):
    tensors = [t.to(device) for t in inputs((2, 16, 12, 9), 20, layout=torch.channels_last)]
    ours, theirs = ([t.clone().requires_grad_() for t in tensors] for _ in range(2))
    detops.winograd_conv2d(*ours).square().sum().backward()
    F.conv2d(*theirs, padding=1).square().sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4 * b.grad.abs().max().item())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize(("shape", "outputs"), [*SHAPES, ((3, 20, 57, 61), 17)])
def test_weight_gradient_matches_a_convolution(isa, shape, outputs, dtype, layout):
    x, weight, _ = inputs(shape, outputs, dtype=dtype, layout=layout)
    for padding in (1, (2, 1), 0):
        if padding == 0 and min(shape[2:]) < 3:
            continue
        wide = weight.double().clone().requires_grad_()
        sums = F.conv2d(x.double(), wide, padding=padding)
        grad = torch.randn(sums.shape, dtype=torch.float64).to(dtype, memory_format=layout)
        sums.backward(grad.double())
        pair = padding if isinstance(padding, tuple) else (padding, padding)
        found = raw.winograd_conv2d_backward_weight(grad, x, pair)
        assert found.dtype == dtype and found.is_contiguous(memory_format=layout)
        scale = max(1.0, wide.grad.abs().max().item())
        torch.testing.assert_close(
            found.double(), wide.grad, rtol=0, atol=ATOL[dtype] * scale, check_stride=False
        )


@pytest.mark.parametrize("shape", [(0, 3, 4, 5), (2, 0, 4, 5)])
def test_weight_gradient_of_empty_input_is_zero(shape):
    grad = torch.zeros(shape[0], 7, 4, 5)
    found = raw.winograd_conv2d_backward_weight(grad, torch.zeros(shape), [1, 1])
    assert torch.equal(found, torch.zeros(7, shape[1], 3, 3))


def test_weight_gradient_is_the_same_for_any_thread_count():
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(3, c, 60, 60, generator=generator) for c in (24, 40))
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(raw.winograd_conv2d_backward_weight(grad, x, [1, 1]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_weight_gradient_rejects_a_gradient_of_another_size():
    message = r"detops.winograd_conv2d_backward_weight: grad must be \[N, O, 4, 5\], got"
    with pytest.raises(RuntimeError, match=message):
        raw.winograd_conv2d_backward_weight(
            torch.zeros(1, 2, 4, 6), torch.zeros(1, 3, 4, 5), [1, 1]
        )


@pytest.mark.slow
def test_exported_graph_contains_a_plain_convolution():
    program = torch.export.export(detops.ops.WinogradConv2d(3, 4), (torch.randn(1, 3, 8, 8),))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert called == ["aten.conv2d.default"]


def test_module_loads_the_weights_of_a_convolution():
    torch.manual_seed(0)
    plain = torch.nn.Conv2d(5, 6, 3, padding=1)
    ours = detops.ops.WinogradConv2d(5, 6)
    ours.load_state_dict(plain.state_dict())
    x = torch.randn(1, 5, 7, 9)
    torch.testing.assert_close(ours(x), plain(x), rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(1, 2, 3, 3), torch.zeros(4, 2, 5, 5)), "weight must be"),
        ((torch.zeros(1, 2, 3, 3), torch.zeros(4, 3, 3, 3)), "weight must be"),
        (
            (torch.zeros(1, 2, 3, 3), torch.zeros(4, 2, 3, 3), None, 3),
            r"padding must be in \[0, 2\]",
        ),
        ((torch.zeros(1, 2, 2, 3), torch.zeros(4, 2, 3, 3), None, 0), r"must fit .* 2 x 3 pixels"),
        ((torch.zeros(1, 2, 3, 3), torch.zeros(4, 2, 3, 3), torch.zeros(3)), r"bias must be \[4\]"),
    ],
)
def test_winograd_conv2d_rejects_bad_arguments(arguments, message):
    with pytest.raises(RuntimeError, match=f"detops.winograd_conv2d: .*{message}"):
        detops.winograd_conv2d(*arguments)


# Height, width, channels, outputs; kernel, stride, padding, dilation. Rows of 1,024 channels map to
# the same cache sets and are copied; so are rows of 512 channels at a stride of 2.
DIRECT = (
    ((5, 7, 3, 4), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((9, 130, 3, 40), (7, 7), (2, 2), (3, 3), (1, 1)),
    ((11, 13, 16, 33), (1, 1), (2, 2), (0, 0), (1, 1)),
    ((6, 15, 1024, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((5, 6, 512, 5), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((12, 9, 5, 64), (3, 2), (1, 3), (4, 2), (3, 2)),
    ((4, 4, 6, 15), (1, 1), (1, 1), (2, 0), (1, 1)),
)


@pytest.mark.parametrize("dtype", ATOL)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", DIRECT)
def test_packed_conv2d_matches_a_convolution(isa, case, layout, dtype):
    (height, width, channels, outputs), kernel, *window = case
    x, weight, bias = inputs((2, channels, height, width), outputs, max(kernel), dtype, layout)
    weight = weight[:, :, : kernel[0], : kernel[1]]
    packed = raw.pack_conv2d_weight(weight)
    sums = F.conv2d(x.double(), weight.double(), None, *window)
    others = torch.randn(sums.shape, dtype=torch.float64).to(dtype)
    for offset, add, relu in ((None, None, False), (bias, others, True), (bias, None, True)):
        found = raw.packed_conv2d(x, packed, offset, add, outputs, kernel, *window, relu)
        expected = sums + (0 if offset is None else offset.double().view(-1, 1, 1))
        expected = expected + (0 if add is None else add.double())
        expected = expected.relu() if relu else expected
        torch.testing.assert_close(
            found.double(), expected, rtol=0, atol=ATOL[dtype], check_stride=False
        )


def test_packed_winograd_weights_match_a_convolution(isa):
    x, weight, bias = inputs((2, 20, 14, 14), 40, layout=torch.channels_last)
    add = torch.randn(2, 40, 14, 14)
    packed = raw.pack_winograd_weight(weight)
    assert packed.shape == (36, 2, 20, 32)
    found = raw.packed_conv2d(x, packed, bias, add, 40, [3, 3], [1, 1], [1, 1], [1, 1], True)
    expected = (F.conv2d(x, weight, bias, padding=1) + add).relu()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5, check_stride=False)


def test_zero_channels_with_a_huge_kernel_give_the_bias():
    """The sum is empty and needs neither the time nor the memory of that many weights."""
    side, bias = 2**31 - 1, torch.arange(3.0)
    window = [side, side], [1, 1], [side // 2, side // 2], [1, 1]
    empty = torch.zeros(1, 0, 2, 2), torch.zeros(1, 1, 0, 32)
    found = raw.packed_conv2d(*empty, bias, None, 3, *window, False)
    assert torch.equal(found, bias.view(1, 3, 1, 1).expand(1, 3, 2, 2))


def test_relu_keeps_nan():
    x = torch.tensor([math.nan, -1.0, 2.0]).view(1, 1, 1, 3)
    packed = raw.pack_conv2d_weight(torch.ones(1, 1, 1, 1))
    found = raw.packed_conv2d(x, packed, None, None, 1, [1, 1], [1, 1], [0, 0], [1, 1], True)
    assert found[0, 0, 0, 0].isnan() and found[0, 0, 0, 1:].tolist() == [0, 2]


@pytest.mark.parametrize(
    ("packed", "window", "message"),
    [
        ((1, 1, 8, 32), ([3, 3], [1, 1], [1, 1], [1, 1]), r"packed must be \[1, _, 18, 32\]"),
        ((36, 1, 3, 32), ([3, 3], [1, 1], [1, 1], [1, 1]), r"packed must be \[36, _, 2, 32\]"),
        ((2, 1, 18, 32), ([3, 3], [1, 1], [1, 1], [1, 1]), r"\[36, _, _, 32\], got \[2, 1"),
        ((36, 1, 2, 32), ([3, 3], [2, 1], [1, 1], [1, 1]), r"a stride of 1, got \[2, 1\]"),
        ((36, 1, 2, 32), ([3, 3], [1, 1], [1, 1], [1, 2]), r"a dilation of 1, got \[1, 2\]"),
        ((36, 1, 2, 32), ([3, 2], [1, 1], [1, 1], [1, 1]), "3 x 3, got 3 x 2"),
        ((1, 2, 18, 32), ([3, 3], [1, 1], [1, 1], [1, 1]), "packed must be"),
        ((1, 1, 18, 32), ([3, 3], [1, 1], [0, 0], [3, 1]), "must fit into the input"),
        ((1, 1, 18, 32), ([3, 3], [0, 1], [0, 0], [1, 1]), "stride must be at least 1"),
    ],
)
def test_packed_conv2d_rejects_bad_weights_and_windows(packed, window, message):
    with pytest.raises(RuntimeError, match=f"detops.packed_conv2d: .*{message}"):
        raw.packed_conv2d(torch.zeros(1, 2, 5, 5), torch.zeros(packed), None, None, 4, *window)


def test_benchmark_matches_pytorch(device):
    from detops.bench import winograd_conv2d

    case = next(c for c in winograd_conv2d.cases(device) if c.quick)
    torch.testing.assert_close(case.ours(), case.pytorch(), rtol=0, atol=1e-4)
