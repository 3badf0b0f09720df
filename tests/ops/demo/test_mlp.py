import pytest
import reference
import torch
from torch.autograd import gradcheck

import detops

SHAPES = [(4, 5, 15, 1), (1, 5, 15, 1), (1500, 5, 15, 1), (9, 7, 33, 3), (6, 1, 1, 2)]
LARGE = (20, 90, 150, 12)  # computed with matrix products


def arguments(shape, device="cpu", dtype=torch.float32, grad=True):
    rows, inputs, hidden, outputs = shape
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(size, generator=generator, dtype=torch.float64)
        .to(device, dtype)
        .requires_grad_(grad)
        for size in [(rows, inputs), (hidden, inputs), (1, hidden), (outputs, hidden), (1, outputs)]
    ]


def gradients(f, args):
    output = f(*args)
    grad = torch.linspace(-1, 1, output.numel(), device=output.device).view_as(output)
    return [output, *torch.autograd.grad(output, args, grad.to(output.dtype))]


@pytest.mark.parametrize("shape", [*SHAPES, LARGE])
def test_mlp_matches_plain_pytorch(device, isa, shape):
    for dtype, tolerance in [(torch.float32, 1e-4), (torch.float64, 1e-12)]:
        args = arguments(shape, device, dtype)
        ours, theirs = gradients(detops.mlp, args), gradients(reference.mlp, args)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_rounds_the_float32_result(device, dtype):
    for shape in (SHAPES[0], LARGE):
        args = arguments(shape, device, dtype, grad=False)
        wide = reference.mlp(*[a.float() for a in args])
        found = detops.mlp(*args)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), wide, rtol=torch.finfo(dtype).eps / 2, atol=2e-6)


def test_derivatives_pass_gradcheck(device):
    for shape in [(3, 5, 15, 1), (2, 3, 4, 2)]:
        assert gradcheck(detops.mlp, arguments(shape, device, torch.float64))


def test_relu_matches_the_reference_at_zero_and_nan(device, isa):
    args = arguments((2, 2, 3, 1), device)
    with torch.no_grad():
        args[0].zero_()
        args[2].zero_()
    for a, b in zip(gradients(detops.mlp, args), gradients(reference.mlp, args), strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        args[0][0] = float("nan")
        args[0][1] = float("inf")
        args[1].copy_(torch.tensor([[1.0, 2], [3, 4], [-1, -1]]))
    assert torch.equal(detops.mlp(*args).isnan(), reference.mlp(*args).isnan())


def test_single_row_gives_the_same_bits_as_in_a_batch(isa):
    args = arguments(SHAPES[2], grad=False)
    all_rows = detops.mlp(*args)
    assert torch.equal(all_rows[700:701], detops.mlp(args[0][700:701], *args[1:]))


def test_threads_give_the_same_bits(two_threads):
    args = arguments((5000, 5, 15, 1))
    one, two = two_threads(lambda: gradients(detops.mlp, args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_mlp_accepts_any_layout_and_empty_input(device):
    args = arguments((4, 5, 15, 1), device)
    strided = [torch.stack([a, a], -1)[..., 0] for a in args]
    torch.testing.assert_close(detops.mlp(*strided), detops.mlp(*args))
    transposed = [args[0], args[1].t().contiguous().t(), *args[2:]]
    torch.testing.assert_close(detops.mlp(*transposed), detops.mlp(*args))
    empty = arguments((0, 5, 15, 1), device)
    output, *grads = gradients(detops.mlp, empty)
    assert output.shape == (0, 1)
    assert all(not g.any() and g.shape == a.shape for g, a in zip(grads, empty, strict=True))


def test_module_matches_the_reference(device):
    torch.manual_seed(0)
    module = detops.MLP().to(device)
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    assert shapes == {
        "hidden_weights": (15, 5),
        "hidden_bias": (1, 15),
        "output_weights": (1, 15),
        "output_bias": (1, 1),
    }
    for p in module.parameters():
        assert p.abs().max() <= 0.001 and (p.numel() == 1 or p.std() > 0)
    x = torch.randn(8, 5, device=device)
    expected = reference.mlp(x, *module.parameters())
    torch.testing.assert_close(module(x), expected)
    module(x).sum().backward()
    assert all(p.grad is not None for p in module.parameters()) and x.grad is None
    with torch.inference_mode():
        torch.testing.assert_close(module(x), expected.detach())


@pytest.mark.parametrize("grad", [False, True])
def test_errors_name_the_bad_argument(device, grad):
    names = ["input", "hidden_weights", "hidden_bias", "output_weights", "output_bias"]
    valid = dict(zip(names, arguments((4, 5, 15, 1), device, grad=grad), strict=True))
    for name, value, message in [
        ("input", torch.randn(4, 6), r"hidden_weights must be \[H, 6\], got \[15, 5\]"),
        ("input", torch.randn(5), r"input must be \[B, I\], got \[5\]"),
        ("hidden_bias", torch.randn(15), r"hidden_bias must be \[1, 15\], got \[15\]"),
        ("output_weights", torch.randn(1, 14), r"output_weights must be \[O, 15\], got \[1, 14\]"),
        ("output_bias", torch.randn(1, 2), r"output_bias must be \[1, 1\], got \[1, 2\]"),
        ("output_bias", torch.randn(1, 1).double(), r"output_bias must have the dtype of input"),
        ("hidden_weights", torch.randn(15, 5, device="meta"), "must be on the device of input"),
    ]:
        value = value if value.is_meta else value.to(device)
        with pytest.raises(RuntimeError, match="detops.mlp: .*" + message):
            detops.mlp(**{**valid, name: value})
    with pytest.raises(RuntimeError, match="input must be float32"):
        detops.mlp(**{**valid, "input": torch.ones(4, 5, dtype=torch.long, device=device)})


def test_second_derivative_raises():
    args = arguments((4, 5, 15, 1))
    (grad,) = torch.autograd.grad(detops.mlp(*args).sum(), args[0], create_graph=True)
    with pytest.raises(RuntimeError, match="mlp_backward is not implemented"):
        grad.sum().backward()


@pytest.mark.slow
def test_ops_pass_opcheck_compile_and_autocast_to_float32():
    args = arguments((4, 5, 15, 1), grad=False)
    ops = torch.ops.detops
    output, hidden = ops.mlp_forward(*args)
    torch.library.opcheck(ops.mlp_forward.default, args)
    torch.library.opcheck(ops.mlp_backward.default, (output, args[0], hidden, args[1], args[3]))
    differentiable = arguments((4, 5, 15, 1))
    torch.library.opcheck(ops.mlp.default, differentiable)
    compiled = torch.compile(detops.mlp, fullgraph=True, dynamic=True, backend="aot_eager")
    for a, b in zip(
        gradients(compiled, differentiable), gradients(detops.mlp, differentiable), strict=True
    ):
        torch.testing.assert_close(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.mlp(*args), output)
        assert detops.mlp(args[0].bfloat16(), *args[1:]).dtype == torch.float32
