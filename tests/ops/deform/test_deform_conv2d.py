import pytest
import reference_deform_conv2d as reference
import torch
import torch.nn.functional as F
import torchvision
from cases_deform_conv2d import (
    LAYOUTS,
    SHAPES,
    arguments,
    as_double,
    call,
    check_all,
    gradients,
)
from torch.autograd import gradcheck

import detops
from detops._C import deform_conv2d_backward, deform_conv2d_forward


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("masked", "biased"), [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize("name", SHAPES)
def test_deform_conv2d_matches_torchvision(isa, device, name, masked, biased, layout, poison):
    tensors, window = arguments(name, masked, biased, layout, device=device)
    ours = gradients(detops.deform_conv2d, tensors, window)
    theirs = gradients(torchvision.ops.deform_conv2d, as_double(tensors), window)
    check_all(ours, theirs)
    if min(ours[0].shape[1:]) > 1:
        assert ours[0].is_contiguous(memory_format=layout)
        assert ours[1].is_contiguous(memory_format=layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_deform_conv2d_matches_reference_in_float64(isa, name, masked, layout):
    tensors, window = arguments(name, masked, layout=layout, dtype=torch.double)
    check_all(
        gradients(detops.deform_conv2d, tensors, window),
        gradients(reference.deform_conv2d, tensors, window),
        eps=2.2e-16,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["plain", "depthwise", "several tiles"])
def test_half_precision_matches_rounded_float32(isa, device, dtype, name, layout):
    tensors, window = arguments(name, layout=layout, dtype=dtype, device=device)
    wide = tuple(t.detach().float().requires_grad_() for t in tensors)
    grad = torch.randn(call(detops.deform_conv2d, tensors, window).shape, device=device).to(dtype)
    ours = gradients(detops.deform_conv2d, tensors, window, grad)
    expected = gradients(detops.deform_conv2d, wide, window, grad.float())
    # CUDA kernels round samples before tensor cores multiply them; CPU kernels round only results.
    rounds_once = device == "cpu" and not detops._C.emulated
    check_all(ours, expected, torch.finfo(dtype).eps, factor=2)
    for one, other in zip(ours, expected, strict=True):
        assert one.dtype == dtype
        assert not rounds_once or torch.equal(one, other.to(dtype))


def test_arguments_may_have_different_dtypes(device):
    tensors, window = arguments("groups", device=device)
    x, offset, mask, weight, bias = tensors
    half = (x.detach().half().requires_grad_(), offset, mask.detach().double().requires_grad_(),
            weight, bias)  # fmt: skip
    ours = gradients(detops.deform_conv2d, half, window)
    wide = (half[0].detach().float().requires_grad_(), *tensors[1:])
    expected = gradients(detops.deform_conv2d, wide, window, torch.randn(
        ours[0].shape, generator=torch.Generator().manual_seed(7)).half().float())  # fmt: skip
    assert [t.dtype for t in ours[1:]] == [t.dtype for t in half]
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other.to(one.dtype))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_zero_offset_gives_a_convolution(isa, device, layout):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 9, 8, generator=generator).to(device).contiguous(memory_format=layout)
    weight = torch.randn(4, 3, 3, 2, generator=generator).to(device)
    window = ((2, 1), (1, 2), (1, 2))
    expected = F.conv2d(x, weight, None, *window, groups=2)
    offset = torch.zeros(2, 12, *expected.shape[2:], device=device)
    ours = detops.deform_conv2d(x, offset, weight, None, *window)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("size", [0, 1, -1, "any"])
def test_gradients_at_integer_offsets_match_torchvision(isa, device, size):
    # Training starts here: all samples lie on pixels, some exactly one pixel outside.
    tensors, window = arguments("plain", device=device)
    generator = torch.Generator().manual_seed(0)
    integers = torch.randint(-2, 3, tensors[1].shape, generator=generator).to(tensors[1])
    offset = integers if size == "any" else torch.full_like(tensors[1], size)
    tensors_with_offset = (tensors[0], offset.detach().requires_grad_(), *tensors[2:])
    ours = gradients(detops.deform_conv2d, tensors_with_offset, window)
    check_all(
        ours, gradients(torchvision.ops.deform_conv2d, as_double(tensors_with_offset), window)
    )
    if device == "cpu":
        check_all(ours, gradients(reference.deform_conv2d, as_double(tensors_with_offset), window))


def test_sample_at_exactly_minus_one_has_a_gradient(device):
    x = torch.rand(1, 1, 3, 3, device=device)
    offset = torch.zeros(1, 18, 3, 3, device=device).requires_grad_()
    weight = torch.ones(1, 1, 3, 3, device=device)
    detops.deform_conv2d(x, offset, weight, padding=1).sum().backward()
    # The y offset of the top middle kernel point, in the first output row.
    torch.testing.assert_close(offset.grad[0, 2, 0], x[0, 0, 0])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("masked", [True, False])
def test_deform_conv2d_passes_gradcheck(device, masked, layout):
    tensors, window = arguments("groups", masked, layout=layout, dtype=torch.double, device=device)
    x, offset, mask, weight, bias = tensors
    # Avoids integers, where the derivative does not exist.
    offset = (offset.detach().floor() + 0.3).requires_grad_()
    mask = mask[:1].detach().requires_grad_() if masked else None
    selected = (x[:1].detach().contiguous(memory_format=layout).requires_grad_(),
            offset[:1].detach().requires_grad_(), mask, weight, bias)  # fmt: skip
    present = [t for t in selected if t is not None]

    def function(*present_tensors):
        present_tensors = iter(present_tensors)
        return call(
            detops.deform_conv2d,
            [None if t is None else next(present_tensors) for t in selected],
            window,
        )

    assert gradcheck(function, present, fast_mode=True)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["several tiles", "depthwise", "large groups", "many images"])
def test_every_run_and_thread_count_give_the_same_bits(two_threads, name, layout):
    tensors, window = arguments(name, layout=layout)
    one, two = two_threads(lambda: gradients(detops.deform_conv2d, tensors, window))
    repeated = gradients(detops.deform_conv2d, tensors, window)
    for first, second, third in zip(one, two, repeated, strict=True):
        assert torch.equal(first, second) and torch.equal(first, third)


def test_backward_computes_only_requested_gradients(device):
    tensors, window = arguments("groups", device=device)
    grad = torch.randn_like(call(detops.deform_conv2d, tensors, window))
    everything = deform_conv2d_backward(grad, *tensors, *window, [True] * 5)
    for i in range(5):
        requested = [j == i for j in range(5)]
        found = deform_conv2d_backward(grad, *tensors, *window, requested)
        for j in range(5):
            assert torch.equal(found[j], everything[j] if j == i else grad.new_empty(0))
        # Autograd returns the same, in the order of its arguments.
        (ours,) = torch.autograd.grad(call(detops.deform_conv2d, tensors, window), tensors[i], grad)
        assert torch.equal(ours, everything[i])


@pytest.mark.parametrize("images", [0, 2])
@pytest.mark.parametrize("outputs", [0, 4])
def test_empty_batches_and_outputs_give_zero_gradients(device, images, outputs):
    (x, offset, mask, weight, bias), window = arguments("plain", device=device)
    selected = (x[:images], offset[:images], mask[:images], weight[:outputs], bias[:outputs])
    selected = tuple(t.detach().requires_grad_() for t in selected)
    results = gradients(detops.deform_conv2d, selected, window)
    assert results[0].shape == (images, outputs, 7, 9)
    for t, grad in zip(selected, results[1:], strict=True):
        assert grad.shape == t.shape
        assert images * outputs > 0 or (grad == 0).all()


def test_deform_conv2d_accepts_strided_tensors(device):
    tensors, window = arguments("groups", device=device)
    strided = tuple(
        torch.stack([t.detach(), t.detach()], -1)[..., 0].requires_grad_() for t in tensors
    )
    assert not any(t.is_contiguous() for t in strided)
    grad = torch.randn(8, 8, 6, 7, device=device)[::4]
    ours = gradients(detops.deform_conv2d, strided, window, grad)
    expected = gradients(detops.deform_conv2d, tensors, window, grad.contiguous())
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)
    output = call(detops.deform_conv2d, tensors, window)
    (grad_of_sum,) = torch.autograd.grad(output.sum(), tensors[0])  # with an expanded gradient
    (grad_of_ones,) = torch.autograd.grad(
        call(detops.deform_conv2d, tensors, window), tensors[0], torch.ones_like(output)
    )
    assert torch.equal(grad_of_sum, grad_of_ones)


X, OFFSET, MASK = torch.zeros(2, 6, 5, 4), torch.zeros(2, 18, 3, 2), torch.zeros(2, 9, 3, 2)
W, B = torch.zeros(4, 6, 3, 3), torch.zeros(4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(input=X[0]), r"input must be \[N, C, H, W\], got \[6, 5, 4\]"),
        (dict(input=X.long()), "input must be float32, float64, float16 or bfloat16, got int64"),
        (dict(input=X[:, :, :0]), "input must be .*H >= 1, W >= 1"),
        (dict(offset=OFFSET[0]), r"offset must be \[2, offset_channels, oh, ow\], "
                                 r"got \[18, 3, 2\]"),
        (dict(offset=OFFSET.int()), "offset must be float32.*got int32"),
        (dict(offset=OFFSET.to("meta")), "offset must be on the device of input"),
        (dict(offset=OFFSET[:, :17]), r"offset.size\(1\) must be a multiple of 2 \* kh \* kw "
                                      r"\(18\), got 17"),
        (dict(offset=OFFSET[:, :0]), r"offset.size\(1\) must be a multiple .*, got 0"),
        (dict(offset=torch.zeros(2, 72, 3, 2)), r"channels must be a multiple of the offset groups "
                                                r"\(4\), got 6"),
        (dict(offset=OFFSET[:, :, :2]), r"offset must be \[2, 18, 3, 2\], got \[2, 18, 2, 2\]"),
        (dict(offset=OFFSET[:1]), r"offset must be \[2, offset_channels, oh, ow\], "
                                  r"got \[1, 18, 3, 2\]"),
        (dict(mask=MASK[:, :8]), r"mask must be \[2, 9, 3, 2\], got \[2, 8, 3, 2\]"),
        (dict(mask=MASK[0]), r"mask must be \[2, mask_channels, _, _\]"),
        (dict(mask=MASK.bool()), "mask must be float32.*got bool"),
        (dict(weight=W[0]), r"weight must be \[O, group_channels, kh, kw\], got \[6, 3, 3\]"),
        (dict(weight=W.to("meta")), "weight must be on the device of input"),
        (dict(weight=W[:, :4]), r"weight.size\(1\) must divide the input's channels \(6\), got 4"),
        (dict(weight=W[:, :0]), r"weight must be \[O, group_channels >= 1, kh >= 1, kw >= 1\]"),
        (dict(weight=torch.zeros(4, 7, 3, 3)), r"weight.size\(1\) must divide"),
        (dict(weight=torch.zeros(4, 2, 3, 3)), r"weight.size\(0\) must be a multiple of the groups "
                                               r"\(3\), got 4"),
        (dict(bias=B[:3]), r"bias must be \[4\], got \[3\]"),
        (dict(bias=W), r"bias must be \[4\], got \[4, 6, 3, 3\]"),
        (dict(stride=0), r"stride must be at least 1, got \[0, 0\]"),
        (dict(padding=(0, -1)), r"padding must be at least 0, got \[0, -1\]"),
        (dict(dilation=0), r"dilation must be at least 1, got \[0, 0\]"),
        (dict(dilation=(1, 2)), r"the kernel, dilated to 5 pixels, must fit into the input with "
                                r"its padding \(4 \+ 2 \* 0 pixels\)"),
    ],
)  # fmt: skip
def test_deform_conv2d_rejects_bad_input(device, change, message):
    call_arguments = dict(input=X, offset=OFFSET, weight=W, bias=B, mask=MASK) | change
    call_arguments = {
        name: x.to(device) if isinstance(x, torch.Tensor) and x.device.type == "cpu" else x
        for name, x in call_arguments.items()
    }
    with pytest.raises(RuntimeError, match="detops.deform_conv2d: .*" + message):
        detops.deform_conv2d(**call_arguments)
    with torch.inference_mode(), pytest.raises(RuntimeError, match=message):
        detops.deform_conv2d(**call_arguments)


def test_backward_rejects_bad_gradient(device):
    tensors = [t.to(device) for t in (X, OFFSET, MASK, W, B)]
    window, requested = ((1, 1), (0, 0), (1, 1)), [True] * 5
    for grad, message in (
        (torch.zeros(2, 4, 3, 3), r"grad must be \[2, 4, 3, 2\], got \[2, 4, 3, 3\]"),
        (torch.zeros(4, 3, 2), r"grad must be \[2, 4, 3, 2\], got \[4, 3, 2\]"),
        (torch.zeros(2, 4, 3, 2).long(), "grad must be float32"),
        (torch.zeros(2, 4, 3, 2, device="meta"), "grad must be on the device of input"),
    ):
        grad = grad if grad.is_meta else grad.to(device)
        with pytest.raises(RuntimeError, match="detops.deform_conv2d_backward: " + message):
            deform_conv2d_backward(grad, *tensors, *window, requested)


def test_second_derivatives_raise(device):
    tensors, window = arguments("plain", device=device)
    output = call(detops.deform_conv2d, tensors, window)
    (grad,) = torch.autograd.grad(output.sum(), tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="derivative for detops::deform_conv2d_backward is not"):
        grad.sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("masked", [True, False])
def test_deform_conv2d_passes_opcheck(masked, layout):
    tensors, window = arguments("groups", masked, masked, layout)
    tensors = tuple(t if t is None else t.detach() for t in tensors)
    torch.library.opcheck(torch.ops.detops.deform_conv2d_forward.default, (*tensors, *window))
    grad = torch.randn_like(deform_conv2d_forward(*tensors, *window))
    for requested in ([True] * 5, [False, True, False, False, True]):
        torch.library.opcheck(
            torch.ops.detops.deform_conv2d_backward.default, (grad, *tensors, *window, requested)
        )


@pytest.mark.slow
def test_compiled_deform_conv2d_matches_eager():
    def function(x, offset, mask, weight, bias):
        return detops.deform_conv2d(x, offset, weight, bias, 1, 1, 1, mask).square().sum()

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for layout in LAYOUTS:
        for size in (6, 9):
            tensors, _ = arguments("plain", layout=layout)
            x = torch.randn(2, 6, size, size + 1).contiguous(memory_format=layout).requires_grad_()
            offset = torch.randn(2, 18, size, size + 1, requires_grad=True)
            mask = torch.rand(2, 9, size, size + 1, requires_grad=True)
            inputs = (x, offset, mask, *tensors[3:])
            torch.testing.assert_close(compiled(*inputs), function(*inputs))
            ours = torch.autograd.grad(compiled(*inputs), inputs)
            for one, other in zip(
                ours, torch.autograd.grad(function(*inputs), inputs), strict=True
            ):
                torch.testing.assert_close(one, other)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_and_func_grad_match_loop():
    (x, offset, mask, weight, bias), window = arguments("plain")
    batch = [torch.stack([t.detach(), 2 * t.detach()]) for t in (x, offset, mask)]

    def total(x, offset, mask):
        return call(detops.deform_conv2d, (x, offset, mask, weight, bias), window).square().sum()

    gradient = torch.func.grad(total, argnums=(0, 1, 2))
    found = torch.vmap(gradient)(*batch)
    for i in range(2):
        for one, other in zip(found, gradient(*(t[i] for t in batch)), strict=True):
            torch.testing.assert_close(one[i], other)


def test_autocast_returns_bfloat16():
    (x, offset, mask, weight, bias), window = arguments("plain")
    selected = (x.detach().bfloat16().requires_grad_(), offset, mask, weight, bias)
    with torch.autocast("cpu", torch.bfloat16):
        output = call(detops.deform_conv2d, selected, window)
    expected = call(torchvision.ops.deform_conv2d, (selected[0].float(), *selected[1:]), window)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output, expected.bfloat16(), atol=0, rtol=2**-7)
    output.float().sum().backward()
    assert x.grad is None and selected[0].grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_module_matches_torchvision():
    torch.manual_seed(0)
    ours = detops.DeformConv2d(6, 4, (3, 2), 2, 1, (1, 2), groups=2)
    torch.manual_seed(0)
    theirs = torchvision.ops.DeformConv2d(6, 4, (3, 2), 2, 1, (1, 2), groups=2)
    assert list(ours.state_dict()) == list(theirs.state_dict()) == ["weight", "bias"]
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    x, offset, mask = torch.randn(1, 6, 9, 9), torch.randn(1, 12, 5, 5), torch.rand(1, 6, 5, 5)
    for tensors in ((x, offset), (x, offset, mask)):
        torch.testing.assert_close(ours(*tensors), theirs(*tensors), atol=1e-5, rtol=0)
    assert "6, 4, kernel_size=(3, 2), stride=(2, 2), padding=(1, 1)" in repr(ours)
    without_bias = detops.DeformConv2d(6, 4, 3, bias=False)
    assert without_bias.bias is None and list(without_bias.state_dict()) == ["weight"]
    assert detops.DeformConv2d(6, 0, 3).weight.shape == (0, 6, 3, 3)
    for channels in ((5, 4), (6, 5)):
        with pytest.raises(ValueError, match=r"must be divisible by groups \(2\), got 5"):
            detops.DeformConv2d(*channels, 3, groups=2)
    for groups in (0, -2):
        with pytest.raises(ValueError, match=rf"must be divisible by groups \({groups}\), got 6"):
            detops.DeformConv2d(6, 4, 3, groups=groups)
