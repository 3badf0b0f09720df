import pytest
import reference
import torch
from torch.autograd import gradcheck

import detops

# T, B, I, H: odd sizes, one row, more rows than a tile, one step, rows that fill vectors, more
# depth and rows than a product packs at once, one column. On a GPU: several warps per sum, more
# rows than a block processes at once. In emulation: weights beyond a block's memory, for several
# groups of states and of rows, with and without vectors.
SHAPES = [
    (7, 5, 4, 6),
    (3, 1, 2, 33),
    (4, 19, 3, 17),
    (1, 3, 4, 5),
    (2, 16, 32, 128),
    (5, 70, 9, 16),
    (2, 4, 3, 400),
    (9, 17, 140, 21),
    (3, 33, 1, 47),
    (2, 80, 131, 1),
    (3, 2, 2, 132),
    (2, 2100, 1, 3),
    (2, 37, 1, 259),
    (1, 37, 2, 260),
]


def arguments(shape, device="cpu", dtype=torch.float32, grad=True):
    steps, rows, inputs, state = shape
    generator = torch.Generator().manual_seed(0)
    sizes = [(steps, rows, inputs), (3 * state, state + inputs), (3 * state,)]
    sizes += [(rows, state), (rows, state)]
    args = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    args[1] /= max(1, state) ** 0.5
    return [a.to(device, dtype).requires_grad_(grad) for a in args]


def one_step(args):
    return [args[0][0].detach().requires_grad_(args[0].requires_grad), *args[1:]]


def gradients(f, args, inputs=None):
    inputs = args if inputs is None else inputs
    outputs = f(*args)
    grads = [
        torch.linspace(-1, 1, o.numel(), device=o.device, dtype=o.dtype).view_as(o) for o in outputs
    ]
    return [*outputs, *torch.autograd.grad(outputs, inputs, grads)]


@pytest.mark.parametrize("shape", SHAPES)
def test_lltm_matches_the_python_loop(device, isa, shape):
    for dtype, tolerance in [(torch.float32, 2e-4), (torch.float64, 1e-11)]:
        args = arguments(shape, device, dtype)
        for ours, theirs, inputs in [
            (detops.lltm, reference.lltm, args),
            (detops.lltm_cell, reference.lltm_cell, one_step(args)),
        ]:
            pairs = zip(gradients(ours, inputs), gradients(theirs, inputs), strict=True)
            for a, b in pairs:
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_gates_match_float64_over_the_whole_range(isa):
    """Covers exp, expm1 and tanh of vectors with small, large, infinite and NaN elements."""
    values = torch.cat(
        [torch.linspace(-20, 20, 4001), torch.logspace(-30, 2, 500), -torch.logspace(-30, 2, 500)]
    )
    values = torch.cat([values, torch.tensor([0.0, -0.0, 200, -200, torch.inf, -torch.inf])])
    n = len(values)
    weights, bias = torch.zeros(3, 1 + 1), torch.zeros(3)
    for gate in range(3):  # input, output, candidate in turn; the others stay at 1
        bias[:] = 1
        bias[gate] = 0
        weights.zero_()
        weights[gate, 1] = 1
        x, h, c = values[:, None], torch.zeros(n, 1), torch.zeros(n, 1)
        for a, b in zip(
            detops.lltm_cell(x, weights, bias, h, c),
            reference.lltm_cell(
                x.double(), weights.double(), bias.double(), h.double(), c.double()
            ),
            strict=True,
        ):
            torch.testing.assert_close(a.double(), b, rtol=4e-7, atol=2e-38, equal_nan=True)
    c = values[:, None].clone()
    h, _ = detops.lltm_cell(torch.zeros(n, 1), torch.zeros(3, 2), torch.zeros(3), c * 0, c)
    finite = values.isfinite()
    torch.testing.assert_close(
        h[finite, 0].double(), torch.tanh(values[finite].double()) / 2, rtol=4e-7, atol=2e-38
    )
    nan = torch.full((1, 1), torch.nan)
    results = detops.lltm_cell(nan, torch.ones(3, 2), torch.zeros(3), nan * 0, nan)
    assert all(r.isnan().all() for r in results)


def test_weights_beyond_block_memory_match_the_reference(device):
    args = arguments((3, 5, 2, 1700), device)
    for a, b in zip(gradients(detops.lltm, args), gradients(reference.lltm, args), strict=True):
        torch.testing.assert_close(a, b, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize("shape", [(40, 5, 4, 6), (20, 16, 32, 128), (5, 70, 9, 260)])
def test_every_run_gives_the_same_bits(device, shape):
    args = arguments(shape, device)
    first = gradients(detops.lltm, args)
    for _ in range(3):
        repeated = gradients(detops.lltm, args)
        assert all(torch.equal(a, b) for a, b in zip(repeated, first, strict=True))


def test_derivatives_pass_gradcheck(device):
    for shape in [(3, 2, 3, 4), (1, 2, 2, 1)]:
        args = arguments(shape, device, torch.float64)
        assert gradcheck(detops.lltm, args)
        assert gradcheck(detops.lltm_cell, one_step(args))


def test_gradients_of_a_subset_match_the_reference(device):
    """Only required gradients are computed, and some outputs have no gradient."""
    args = arguments(SHAPES[0], device)
    every = dict(zip("xwbhc", gradients(reference.lltm, args)[3:], strict=True))
    for names in ("w", "x", "h", "c", "wb", "xh"):
        leaves = [a.detach().requires_grad_(n in names) for n, a in zip("xwbhc", args, strict=True)]
        inputs = [a for a in leaves if a.requires_grad]
        found = gradients(detops.lltm, leaves, inputs)[3:]
        for name, grad in zip(names, found, strict=True):
            torch.testing.assert_close(grad, every[name], rtol=2e-4, atol=2e-4)
    for k in range(3):
        ours = torch.autograd.grad(detops.lltm(*args)[k].sum(), args)
        theirs = torch.autograd.grad(reference.lltm(*args)[k].sum(), args, materialize_grads=True)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_computes_in_float32(device, dtype):
    args = arguments(SHAPES[0], device, dtype)
    wide = [a.detach().float().requires_grad_() for a in args]
    for a, b in zip(gradients(detops.lltm, args), gradients(reference.lltm, wide), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.float(), b, rtol=5e-2, atol=5e-2)


def test_threads_give_the_same_bits_and_rows_are_independent(two_threads, isa):
    args = arguments((20, 24, 16, 64))
    one, two = two_threads(lambda: detops.lltm(*args))
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
    x, weights, bias, h, c = args
    some = detops.lltm(x[:, :3], weights, bias, h[:3], c[:3])
    torch.testing.assert_close(some[0], one[0][:, :3], rtol=1e-6, atol=1e-6)


def test_lltm_accepts_empty_inputs(device):
    for shape in [(0, 3, 4, 5), (4, 0, 4, 5), (0, 0, 4, 5), (2, 3, 0, 5)]:
        args = arguments(shape, device)
        for a, b in zip(detops.lltm(*args), reference.lltm(*args), strict=True):
            torch.testing.assert_close(a, b)
        output, h, c, *grads = gradients(detops.lltm, args)
        assert output.shape == (shape[0], shape[1], 5)
        assert [g.shape for g in grads] == [a.shape for a in args]
        if shape[0] == 0:
            assert torch.equal(h, args[3]) and torch.equal(c, args[4])
            assert not grads[1].any()
    empty = one_step(arguments((1, 0, 4, 5), device))
    assert all(r.shape == (0, 5) for r in detops.lltm_cell(*empty))
    assert [g.shape for g in gradients(detops.lltm_cell, empty)[2:]] == [a.shape for a in empty]


def test_every_layout_gives_the_same_results(device):
    args = arguments(SHAPES[0], device)
    transposed = [a.mT.contiguous().mT if a.dim() > 1 else a for a in args]
    strided = [torch.stack([a, a], -1)[..., 1] for a in args]
    for inputs in (transposed, strided):
        for a, b in zip(gradients(detops.lltm, inputs), gradients(detops.lltm, args), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for a, b in zip(
        detops.lltm_cell(*one_step(transposed)), detops.lltm_cell(*one_step(args)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_last_state_does_not_share_memory_with_the_output(device):
    args = arguments(SHAPES[0], device, grad=False)
    output, h, c = detops.lltm(*args)
    h.zero_()
    assert output[-1].any()


def test_sequence_module_matches_the_cell_module(device):
    torch.manual_seed(0)
    cell, sequence = detops.LLTM(4, 6).to(device), detops.LLTMSequence(4, 6).to(device)
    shapes = {name: tuple(p.shape) for name, p in cell.named_parameters()}
    assert shapes == {"weights": (18, 10), "bias": (18,)}
    sequence.load_state_dict(cell.state_dict())
    x = torch.randn(7, 3, 4, device=device)
    h, c = torch.randn(2, 3, 6, device=device)
    output, (last_h, last_c) = sequence(x, (h, c))
    for t in range(7):
        h, c = cell(x[t], (h, c))
        torch.testing.assert_close(output[t], h)
    torch.testing.assert_close(last_h, h)
    torch.testing.assert_close(last_c, c)
    zeros = torch.zeros(3, 6, device=device)
    expected = sequence(x, (zeros, zeros))[0]
    torch.testing.assert_close(sequence(x)[0], expected)
    with torch.inference_mode():
        torch.testing.assert_close(sequence(x)[0], expected.detach())


@pytest.mark.parametrize("grad", [False, True])
def test_errors_name_the_bad_argument(device, grad):
    names = ["input", "weights", "bias", "h", "c"]
    for op, input in [(detops.lltm, torch.randn(2, 3, 4)), (detops.lltm_cell, torch.randn(3, 4))]:
        valid = dict(zip(names, arguments((2, 3, 4, 5), device, grad=grad), strict=True))
        valid["input"] = input.to(device)
        op_name = op.__name__
        for name, value, message in [
            ("weights", torch.randn(15, 8), r"weights must be \[15, 9\], got \[15, 8\]"),
            ("weights", torch.randn(20, 9), r"weights must be \[15, 9\], got \[20, 9\]"),
            ("bias", torch.randn(5), r"bias must be \[15\], got \[5\]"),
            ("h", torch.randn(2, 5), r"h must be \[3, H\], got \[2, 5\]"),
            ("h", torch.randn(5), r"h must be \[3, H\], got \[5\]"),
            ("c", torch.randn(3, 6), r"c must be \[3, 5\], got \[3, 6\]"),
            ("c", torch.randn(3, 5).double(), r"c must have the dtype of input \(float32\)"),
            ("c", torch.randn(3, 5, device="meta"), "c must be on the device of input"),
            ("input", torch.randn(4), r"input must be \["),
            ("input", input.unsqueeze(0) if input.dim() == 3 else input[None], r"input must be \["),
        ]:
            value = value if value.is_meta else value.to(device)
            with pytest.raises(RuntimeError, match=f"detops.(lltm|{op_name}): {message}"):
                op(**{**valid, name: value})


def test_row_gives_the_same_bits_at_any_position_in_a_batch(isa):
    one = one_step(arguments((1, 1, 33, 47), grad=False))
    first = None
    for rows in (3, 4, 8, 9, 16, 17, 31, 40, 70):
        inputs = [
            x.expand(rows, -1).contiguous() if k in (0, 3, 4) else x for k, x in enumerate(one)
        ]
        h, c = detops.lltm_cell(*inputs)
        first = first or (h[0], c[0])
        assert all(torch.equal(h[r], first[0]) and torch.equal(c[r], first[1]) for r in range(rows))


def test_a_single_column_may_have_any_stride(isa):
    for position in (0, 3, 4):  # input, state and cell with one element per row
        args = one_step(arguments((1, 16, 1, 1)))
        strided = args[position].detach().repeat(1, 5).t().contiguous().t()[:, :1].requires_grad_()
        assert strided.is_contiguous() and strided.stride(1) != 1
        inputs = [*args[:position], strided, *args[position + 1 :]]
        for ours, plain in zip(
            gradients(detops.lltm_cell, inputs), gradients(detops.lltm_cell, args), strict=True
        ):
            assert torch.equal(ours, plain)


def test_second_derivative_raises():
    args = arguments((2, 3, 4, 5))
    (grad,) = torch.autograd.grad(detops.lltm(*args)[0].sum(), args[0], create_graph=True)
    with pytest.raises(RuntimeError, match="lltm_backward is not implemented"):
        grad.sum().backward()


@pytest.mark.slow
def test_ops_pass_opcheck_compile_and_autocast_to_float32():
    ops = torch.ops.detops
    args = arguments((2, 3, 4, 5), grad=False)
    for inputs in (args, one_step(args)):
        output, cells, gates = ops.lltm_forward(*inputs)
        torch.library.opcheck(ops.lltm_forward.default, inputs)
        h, c = inputs[3:]
        backward = (output, h, c, *inputs[:2], h, c, output, cells, gates)
        torch.library.opcheck(ops.lltm_backward.default, backward)
    differentiable = arguments((2, 3, 4, 5))
    torch.library.opcheck(ops.lltm.default, differentiable)
    torch.library.opcheck(ops.lltm_cell.default, one_step(differentiable))
    compiled = torch.compile(detops.lltm, fullgraph=True, dynamic=True, backend="aot_eager")
    for a, b in zip(
        gradients(compiled, differentiable), gradients(detops.lltm, differentiable), strict=True
    ):
        torch.testing.assert_close(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(detops.lltm(*args)[0], ops.lltm_forward(*args)[0])
        assert detops.lltm(args[0].bfloat16(), *args[1:])[0].dtype == torch.float32


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_cuda_graph_captures_the_backward_pass():
    args = arguments((12, 4, 8, 16), "cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients(detops.lltm, args)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradients(detops.lltm, args)
    for _ in range(2):
        with torch.no_grad():
            args[0].copy_(torch.randn_like(args[0]))
        graph.replay()
        for a, b in zip(captured, gradients(reference.lltm, args), strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4)
