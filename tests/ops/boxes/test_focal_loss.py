import math

import pytest
import reference
import torch
from family_layers import SigmoidFocalLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torchvision.ops import sigmoid_focal_loss as torchvision_focal_loss

import detops
from detops import _C

GAMMAS = [0, 0.5, 1, 2, 3.7]
ALPHAS = [0.25, 0, 1, -1, 0.7]


def inputs(*shape, dtype=torch.float32, device="cpu", scale=3.0, grad=True):
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(shape, generator=generator) * scale).to(device, dtype).requires_grad_(grad)
    t = (torch.rand(shape, generator=generator) > 0.7).to(device, dtype)
    return x, t


def with_gradient(loss, x, *args, **kwargs):
    value = loss(x, *args, **kwargs)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(value.shape, generator=generator).to(value)
    return value.detach(), torch.autograd.grad(value, x, grad)[0]


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_focal_loss_matches_torchvision(isa, device, gamma, alpha, reduction):
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        x, t = inputs(37, 21, dtype=dtype, device=device)
        args = (t, alpha, gamma, reduction)
        ours = with_gradient(detops.sigmoid_focal_loss, x, *args)
        theirs = with_gradient(torchvision_focal_loss, x, *args)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_defaults_match_torchvision():
    x, t = inputs(5, 3)
    torch.testing.assert_close(detops.sigmoid_focal_loss(x, t), torchvision_focal_loss(x, t))


ATOL = {torch.float32: 1e-36, torch.float64: 0, torch.float16: 1e-7, torch.bfloat16: 1e-36}
EPS = {torch.float32: 2e-6, torch.float64: 1e-14, torch.float16: 2**-11, torch.bfloat16: 2**-8}


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_large_logits_and_soft_targets_match_reference(isa, device, gamma, dtype):
    """At logits of 200, e^x overflows float32 and losses underflow. Half precision rounds once."""
    levels = torch.cat(
        [torch.linspace(-20, 20, 161), torch.tensor([-200.0, -99, -88, 88, 99, 200])]
    )
    x = levels.to(device, dtype).repeat(6, 1).requires_grad_()
    t = torch.tensor([0, 1, 0.5, 0.25, 0.9, 2.0**-6], device=device).to(dtype)
    t = t[:, None].expand(6, levels.numel())
    loss, grad = with_gradient(detops.sigmoid_focal_loss, x, t, 0.25, gamma)
    expected = reference.sigmoid_focal_loss(x, t, 0.25, gamma)
    grad_output = torch.randn(loss.shape, generator=torch.Generator().manual_seed(1)).to(loss)
    (expected_grad,) = torch.autograd.grad(expected, x, grad_output.double())
    # The error is x times a few ulps of gamma * log(miss), which is as large as gamma * x.
    error_factor = 1 + (gamma * 25 if gamma not in (0, 1, 2) else 0)
    rtol = EPS[dtype] + (error_factor * 2e-7 if dtype != torch.float64 else error_factor * 1e-15)
    assert loss.isfinite().all() and grad.isfinite().all()
    torch.testing.assert_close(loss.double(), expected, rtol=rtol, atol=ATOL[dtype])
    # With soft targets the gradient crosses 0.
    atol = max(ATOL[dtype], 4e-7 if dtype != torch.float64 else 1e-14)
    torch.testing.assert_close(grad.double(), expected_grad.double(), rtol=2 * rtol, atol=atol)


def test_logarithm_is_accurate_to_a_few_ulps(isa):
    """Without alpha and gamma, the loss of a negative is log1p(e^x)."""
    x = torch.linspace(-80, 0, 100_001)
    loss = _C.sigmoid_focal_loss_forward(x, torch.zeros_like(x), -1, 0)
    exact = torch.log1p(x.double().exp())
    assert ((loss.double() - exact).abs() / exact).max() < 4 * 2**-23


@pytest.mark.parametrize("gamma", GAMMAS)
def test_focal_loss_passes_gradcheck(device, gamma):
    x, _ = inputs(4, 5, dtype=torch.double, device=device)
    t = torch.rand(4, 5, dtype=torch.double, device=device).requires_grad_()
    for alpha in (0.3, -1):
        for reduction in ("none", "mean", "sum"):
            assert gradcheck(
                lambda x, t: detops.sigmoid_focal_loss(x, t, alpha, gamma, reduction),  # noqa: B023
                (x, t),
            )


def test_gradient_of_targets_matches_torchvision():
    x, t = inputs(7, 5)
    t = (t * 0.8 + 0.1).requires_grad_()
    ours, theirs = (f(x, t, reduction="sum") for f in (detops.sigmoid_focal_loss,
                                                       torchvision_focal_loss))  # fmt: skip
    for a, b in zip(*(torch.autograd.grad(loss, (x, t)) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(a, b)


def test_second_derivative_raises():
    x, t = inputs(5)
    loss = detops.sigmoid_focal_loss(x, t, reduction="sum")
    (grad,) = torch.autograd.grad(loss, x, create_graph=True)
    with pytest.raises(RuntimeError, match="sigmoid_focal_loss_backward is not implemented"):
        grad.sum().backward()


def test_autograd_saves_only_the_arguments():
    x, t = inputs(5)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda s: saved.append(s) or s, lambda s: s):
        detops.sigmoid_focal_loss(x, t, reduction="mean")
    assert [s.data_ptr() for s in saved] == [x.data_ptr(), t.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_reductions_sum_in_float32(device, dtype):
    """Both 70,000 losses and the number of elements would overflow float16."""
    x, t = inputs(70_000, dtype=dtype, device=device)
    with torch.no_grad():
        x[0] = 500  # float16 holds the mean, but not the sum
        x[1:] = 5
        t.zero_()
    mean, grad = with_gradient(detops.sigmoid_focal_loss, x, t, reduction="mean")
    assert mean.dtype == dtype and grad.dtype == dtype and mean.isfinite()
    exact = reference.sigmoid_focal_loss(x, t, 0.25, 2).mean()
    torch.testing.assert_close(mean.double(), exact, rtol=EPS[dtype] * 2, atol=0)
    total = detops.sigmoid_focal_loss(x[:5000], t[:5000], reduction="sum")
    exact = reference.sigmoid_focal_loss(x[:5000], t[:5000], 0.25, 2).sum()
    torch.testing.assert_close(total.double(), exact, rtol=EPS[dtype] * 2, atol=0)


def test_focal_loss_promotes_mixed_dtypes(device):
    x, t = inputs(9, 5, device=device)
    for a, b, result in [
        (torch.float16, torch.float32, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float16, torch.bfloat16, torch.float32),
    ]:
        leaf = x.detach().to(a).requires_grad_()
        ours, grad = with_gradient(detops.sigmoid_focal_loss, leaf, t.to(b))
        assert ours.dtype == torchvision_focal_loss(leaf, t.to(b)).dtype == result
        exact = with_gradient(lambda x, t: reference.sigmoid_focal_loss(x, t, 0.25, 2), leaf, t)
        assert grad.dtype == a
        torch.testing.assert_close(ours.double(), exact[0], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(grad, exact[1], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_meta_tensors_give_shapes_and_dtypes(reduction):
    x = torch.empty(9, 5, dtype=torch.float16, device="meta", requires_grad=True)
    loss, grad = with_gradient(detops.sigmoid_focal_loss, x, x.detach(), reduction=reduction)
    assert loss.is_meta and loss.dtype == torch.float16
    assert loss.shape == ((9, 5) if reduction == "none" else ())
    assert grad.is_meta and grad.shape == x.shape


def test_autocast_returns_float32(device):
    x, t = inputs(9, 5, dtype=torch.bfloat16, device=device)
    compiled = torch.compile(detops.sigmoid_focal_loss, fullgraph=True, backend="aot_eager")
    with torch.autocast(device, torch.bfloat16):
        for reduction in ("none", "mean", "sum"):
            exact = detops.sigmoid_focal_loss(x.float(), t.float(), reduction=reduction)
            for loss in (detops.sigmoid_focal_loss, compiled, torchvision_focal_loss):
                assert loss(x, t, reduction=reduction).dtype == torch.float32
            for loss in (detops.sigmoid_focal_loss, compiled):
                ours, grad = with_gradient(loss, x, t, reduction=reduction)
                assert torch.equal(ours, exact) and grad.dtype == torch.bfloat16


@pytest.mark.parametrize("gamma", [2, 0.5])
def test_every_run_and_thread_count_give_the_same_bits(isa, two_threads, gamma):
    x, t = inputs(331, 101)

    def call():
        results = []
        for reduction in ("none", "mean", "sum"):
            results += with_gradient(
                detops.sigmoid_focal_loss, x, t, gamma=gamma, reduction=reduction
            )
        return results

    one, two = two_threads(call)
    for a, b, c in zip(one, two, call(), strict=True):
        assert torch.equal(a, b) and torch.equal(a, c)


def test_sum_reduction_equals_the_sum_of_losses(isa, device):
    for count in (0, 1, 7, 16, 8192, 8193, 100_003):
        x, t = inputs(count, device=device)
        losses = detops.sigmoid_focal_loss(x, t)
        total, grad = with_gradient(detops.sigmoid_focal_loss, x, t, reduction="sum")
        torch.testing.assert_close(total.double(), losses.double().sum(), rtol=1e-6, atol=0)
        grad_output = torch.randn((), generator=torch.Generator().manual_seed(1)).to(device)
        (summed,) = torch.autograd.grad(losses, x, grad_output.expand_as(losses).contiguous())
        assert torch.equal(grad, summed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.double])
def test_focal_loss_accepts_unaligned_memory(isa, device, dtype):
    for count in (1, 2, 15, 1027):
        x, t = inputs(count, dtype=dtype, device=device)
        shifted = [torch.empty(count + 1, dtype=dtype, device=device)[1:].copy_(a.detach())
                   for a in (x, t)]  # fmt: skip
        assert shifted[0].data_ptr() % 16 != 0
        shifted[0].requires_grad_()
        ours, grad = with_gradient(detops.sigmoid_focal_loss, *shifted)
        expected, expected_grad = with_gradient(detops.sigmoid_focal_loss, x, t)
        assert torch.equal(ours, expected) and torch.equal(grad, expected_grad)
        total = detops.sigmoid_focal_loss(*shifted, reduction="sum")
        assert total == detops.sigmoid_focal_loss(*shifted, reduction="sum")
        torch.testing.assert_close(total, detops.sigmoid_focal_loss(x, t, reduction="sum"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradient_of_mean_is_rounded_once(device, dtype):
    """Half precision cannot hold 1 / count, but may hold its product with the slope."""
    x, t = inputs(70_000, dtype=dtype, device=device)
    mean = detops.sigmoid_focal_loss(x, t, reduction="mean")
    (grad,) = torch.autograd.grad(mean, x)
    leaf = x.detach().double().requires_grad_()
    exact = reference.sigmoid_focal_loss(leaf, t.double(), 0.25, 2).mean()
    (expected,) = torch.autograd.grad(exact, leaf)
    torch.testing.assert_close(grad.double(), expected, rtol=EPS[dtype] * 1.1, atol=3e-8)


def test_focal_loss_accepts_any_layout_and_empty_tensors(device):
    x, t = inputs(6, 4, 5, device=device)
    expected = with_gradient(detops.sigmoid_focal_loss, x, t)
    permuted = t.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    strided = torch.stack([t, t], -1)[..., 0]
    for other in (permuted, strided):
        assert not other.is_contiguous()
        for a, b in zip(with_gradient(detops.sigmoid_focal_loss, x, other), expected, strict=True):
            assert torch.equal(a, b)
    leaf = x.detach().permute(2, 0, 1).requires_grad_()
    loss = detops.sigmoid_focal_loss(leaf, t.permute(2, 0, 1))
    assert torch.equal(loss.permute(1, 2, 0), expected[0])
    scalar = detops.sigmoid_focal_loss(x[0, 0, 0], t[0, 0, 0])
    assert scalar.shape == () and scalar == expected[0][0, 0, 0]

    empty, empty_targets = inputs(0, 3, device=device)
    for reduction in ("none", "sum", "mean"):
        ours, grad = with_gradient(
            detops.sigmoid_focal_loss, empty, empty_targets, reduction=reduction
        )
        theirs = torchvision_focal_loss(empty, empty_targets, reduction=reduction)
        torch.testing.assert_close(ours, theirs.detach(), equal_nan=True)
        assert grad.shape == (0, 3)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=40),
    st.floats(0, 1, width=32),
    st.one_of(st.sampled_from(GAMMAS), st.floats(0, 8)),
    st.sampled_from([0.25, -1]),
)
def test_any_finite_logits_give_finite_losses(logits, target, gamma, alpha):
    x = torch.tensor(logits, requires_grad=True)
    t = torch.full_like(x, target)
    loss, grad = with_gradient(detops.sigmoid_focal_loss, x, t, alpha, gamma)
    assert loss.isfinite().all() and (loss >= 0).all() and grad.isfinite().all()


def test_nan_affects_only_its_element(isa, device):
    x, t = inputs(33, device=device)
    with torch.no_grad():
        x[5] = math.nan
    t[9] = math.nan
    for gamma in GAMMAS:
        loss, grad = with_gradient(detops.sigmoid_focal_loss, x, t, gamma=gamma)
        for result in (loss, grad):
            assert result.isnan().nonzero().flatten().tolist() == [5, 9]


def test_focal_loss_rejects_bad_input(device):
    x, t = inputs(3, 4, device=device)
    for alpha in (-0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"alpha must be in \[0, 1\], or -1 for no weights"):
            detops.sigmoid_focal_loss(x, t, alpha)
    with pytest.raises(ValueError, match="reduction must be none, mean or sum, got max"):
        detops.sigmoid_focal_loss(x, t, reduction="max")
    for reduction in ("none", "sum"):
        for inputs_, targets, message in [
            (x, t[:, :1], r"targets must be \[3, 4\], got \[3, 1\]"),
            (x, t[0], r"targets must be \[3, 4\], got \[4\]"),
            (x, t.long(), "targets must be float32, float64, float16 or bfloat16, got int64"),
            (x.detach().long(), t, "inputs must be float32"),
            (x, t.to("meta"), "targets must be on the device of inputs"),
        ]:
            for guard in (torch.enable_grad, torch.inference_mode):
                with (
                    guard(),
                    pytest.raises(RuntimeError, match=f"detops.sigmoid_focal_loss: {message}"),
                ):
                    detops.sigmoid_focal_loss(inputs_, targets, reduction=reduction)
    with pytest.raises(RuntimeError, match=r"_backward: grad must be \[3, 4\], got \[3\]"):
        _C.sigmoid_focal_loss_backward(t[:, 0], x, t, 0.25, 2)


@pytest.mark.slow
def test_focal_loss_passes_opcheck_and_compiles():
    x, t = inputs(9, 5, grad=False)
    ops = torch.ops.detops
    for reduced in (ops.sigmoid_focal_loss_forward, ops.sigmoid_focal_loss_sum):
        torch.library.opcheck(reduced.default, (x, t, 0.25, 2.0))
    torch.library.opcheck(ops.sigmoid_focal_loss_backward.default, (x, x, t, 0.25, 2.0))
    compiled = torch.compile(
        detops.sigmoid_focal_loss, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for size in ((9, 5), (4, 6)):
        for reduction in ("none", "mean", "sum"):
            x, t = inputs(*size)
            ours = with_gradient(compiled, x, t, reduction=reduction)
            plain = with_gradient(detops.sigmoid_focal_loss, x, t, reduction=reduction)
            for a, b in zip(ours, plain, strict=True):
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_vmap_and_func_grad_match_loop(reduction):
    x, t = inputs(3, 4, 5, grad=False)

    def loss(x, t):
        return detops.sigmoid_focal_loss(x, t, reduction=reduction)

    for dims in ((0, 0), (0, None), (None, 0)):
        args = [a if d == 0 else a[0] for a, d in zip((x, t), dims, strict=True)]
        arguments_per_entry = [
            [a[i] if d == 0 else a for a, d in zip(args, dims, strict=True)] for i in range(3)
        ]
        expected = torch.stack([loss(*e) for e in arguments_per_entry])
        torch.testing.assert_close(torch.vmap(loss, in_dims=dims)(*args), expected)
    gradient = torch.func.grad(lambda x, t: loss(x, t).sum())
    expected = torch.stack([gradient(x[i], t[i]) for i in range(3)])
    torch.testing.assert_close(torch.vmap(gradient)(x, t), expected)


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_maskrcnn_benchmark_loss_matches_torchvision(device, integer, dtype):
    logits, _ = inputs(40, 6, device=device)
    logits = logits.detach().to(dtype).requires_grad_()
    targets = torch.arange(40, device=device, dtype=integer) % 8 - 1  # -1 ignored, 0 background
    dense = torch.nn.functional.one_hot(targets.long().clamp(min=0), 7)[:, 1:].to(dtype)
    is_counted = (targets >= 0).to(dtype)[:, None]

    def theirs(x, *args):
        return torchvision_focal_loss(x, dense, 0.3, 1.5) * is_counted

    def ours(x):
        return SigmoidFocalLoss.apply(x, targets, 1.5, 0.3)

    tolerance = 1e-5 if dtype == torch.float32 else 4e-3
    for a, b in zip(with_gradient(ours, logits), with_gradient(theirs, logits), strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    assert not ours(logits)[0].any()


def test_maskrcnn_benchmark_loss_rejects_bad_input_and_traces():
    x, t = torch.zeros(3, 4), torch.zeros(3, dtype=torch.int32)
    for logits, targets, classes, message in [
        (x, t, 5, r"logits must be \[N, 5\], got \[3, 4\]"),
        (x[0], t, 4, r"logits must be \[N, 4\], got \[4\]"),
        (x, t[:2], 4, r"targets must be \[3\], got \[2\]"),
        (x, t.float(), 4, "targets must be int64.*got float32"),
    ]:
        with pytest.raises(RuntimeError, match=f"detops.sigmoid_focalloss_forward: {message}"):
            _C.sigmoid_focalloss_forward(logits, targets, classes, 2.0, 0.25)
    ops = torch.ops.detops
    torch.library.opcheck(ops.sigmoid_focalloss_forward.default, (x, t, 4, 2.0, 0.25))
    torch.library.opcheck(ops.sigmoid_focalloss_backward.default, (x, t, x, 4, 2.0, 0.25))
