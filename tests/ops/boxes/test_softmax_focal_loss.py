import math

import pytest
import reference
import torch
from torch.autograd import gradcheck

import detops
from detops import _C

GAMMAS = [0, 0.5, 1, 2, 3.7]
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def case(rows, classes, dtype=torch.float32, device="cpu", scale=3.0):
    """Returns logits, targets and class weights; some targets are not a class."""
    generator = torch.Generator().manual_seed(rows + classes)
    x = (torch.randn(rows, classes, generator=generator) * scale).to(device, dtype)
    t = torch.randint(-1, classes + 1, (rows,), generator=generator).to(device)
    return x.requires_grad_(), t, torch.rand(classes, generator=generator).to(device)


def assert_close(found, expected, dtype):
    tolerance = {torch.float64: 1e-12, torch.float32: 2e-6}.get(dtype, 2e-6)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_focal_loss_matches_reference(gamma, dtype, device, isa):
    for rows, classes in ((1, 1), (5, 2), (7, 3), (9, 8), (3, 16), (31, 17), (40, 81), (4, 300)):
        x, t, weight = case(rows, classes, dtype, device)
        for weight_or_none in (None, weight):
            loss = detops.softmax_focal_loss(x, t, 0.25, gamma, weight_or_none)
            assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            expected = reference.softmax_focal_loss(x, t, 0.25, gamma, weight_or_none)
            assert_close(loss, expected, dtype)
            if classes == 1:
                continue  # the power in the reference has an infinite derivative
            grad_output = torch.linspace(-1, 1, rows, device=device, dtype=loss.dtype)
            (grad,) = torch.autograd.grad(loss, x, grad_output)
            (exact,) = torch.autograd.grad(expected, x, grad_output.double())
            assert grad.dtype == dtype and exact.dtype == dtype
            half_eps = {torch.float16: 2**-10, torch.bfloat16: 2**-7}.get(dtype, 0)
            rtol = 1e-11 if dtype == torch.float64 else 1e-5
            atol = 1e-13 if dtype == torch.float64 else 1e-6
            torch.testing.assert_close(grad, exact, rtol=max(half_eps, rtol), atol=atol)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_extreme_logits_give_finite_accurate_losses(gamma, device, isa):
    """Logits of up to 200 make p round to 1 or underflow float32."""
    for dtype in (torch.float32, torch.float64):
        confident = torch.tensor([0.0, 1, 5, 20, 40, 80, 200], dtype=dtype, device=device)
        x = torch.stack([confident, 0 * confident, -confident], 1).requires_grad_()
        for target in range(3):
            t = torch.full((7,), target, device=device)
            loss = detops.softmax_focal_loss(x, t, 1.0, gamma)
            expected = reference.softmax_focal_loss(x, t, 1.0, gamma)
            (grad,) = torch.autograd.grad(loss.sum(), x)
            assert loss.isfinite().all() and grad.isfinite().all()
            torch.testing.assert_close(loss.double(), expected, rtol=3e-5, atol=1e-30)


def test_equal_logits_and_single_class_have_known_losses(device):
    x = torch.zeros(2, 4, device=device, requires_grad=True)
    loss = detops.softmax_focal_loss(x, torch.tensor([0, 3], device=device), 1.0, 2.0)
    torch.testing.assert_close(loss, torch.full_like(loss, 0.75**2 * math.log(4)))
    one = torch.full((3, 1), 7.0, device=device, requires_grad=True)
    for gamma in GAMMAS:
        loss = detops.softmax_focal_loss(one, torch.zeros(3, device=device).long(), gamma=gamma)
        (grad,) = torch.autograd.grad(loss.sum(), one)
        assert (loss == 0).all() and (grad == 0).all()


def test_zero_gamma_gives_cross_entropy():
    x, t, weight = case(50, 11, torch.double)
    t = t.clamp(0, 10)
    found = detops.softmax_focal_loss(x, t, 1, 0, weight.double())
    torch.testing.assert_close(
        found, torch.nn.functional.cross_entropy(x, t, weight.double(), reduction="none")
    )


def test_targets_outside_the_classes_are_ignored(device):
    x = torch.randn(5, 3, device=device)
    x[0], x[1, 1], x[2] = math.nan, math.inf, -math.inf
    x.requires_grad_()
    t = torch.tensor([-1, 3, -100, 2**62, -(2**63)], device=device)
    loss = detops.softmax_focal_loss(x, t)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    assert (loss == 0).all() and (grad == 0).all()
    assert detops.softmax_focal_loss(x, t, reduction="mean") == 0


def test_nan_logit_gives_nan_loss(device):
    x = torch.zeros(4, 20, device=device)
    for i, j in enumerate((0, 7, 19)):
        x[i, j] = math.nan
    loss = detops.softmax_focal_loss(x, torch.tensor([3, 7, 3, 3], device=device))
    assert loss.isnan().tolist() == [True, True, True, False]
    # A class with logit -inf does not contribute.
    x = torch.tensor([[0.0, -math.inf, 0.0]], device=device)
    loss = detops.softmax_focal_loss(x, torch.zeros(1, device=device).long(), 1.0, 0.0)
    torch.testing.assert_close(loss, torch.full_like(loss, math.log(2)))


@pytest.mark.parametrize("gamma", GAMMAS)
def test_target_with_logit_minus_infinity_has_finite_gradient(gamma, device, isa):
    """The loss is infinite; the gradient is its limit for p -> 0."""
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([[0.0, -math.inf, 0.0]], device=device, dtype=dtype, requires_grad=True)
        loss = detops.softmax_focal_loss(x, torch.ones(1, device=device).long(), 0.5, gamma)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        assert loss.tolist() == [math.inf] and grad.tolist() == [[0.25, -0.5, 0.25]]


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_softmax_focal_loss_passes_gradcheck(reduction, gamma, device):
    x, t, weight = case(6, 5, torch.double, device, 1.0)
    weight = weight.double().requires_grad_()

    def loss(x, weight):
        return detops.softmax_focal_loss(x, t, 0.3, gamma, weight, reduction)

    assert gradcheck(loss, (x, weight))


def test_reductions_match_losses_and_accept_empty_tensors(device):
    x, t, weight = case(40, 9, device=device)
    losses = detops.softmax_focal_loss(x, t, weight=weight)
    torch.testing.assert_close(
        detops.softmax_focal_loss(x, t, weight=weight, reduction="mean"), losses.mean()
    )
    torch.testing.assert_close(
        detops.softmax_focal_loss(x, t, weight=weight, reduction="sum"), losses.sum()
    )
    for shape in ((0, 9), (3, 0)):
        empty = torch.zeros(shape, device=device, requires_grad=True)
        labels = torch.zeros(shape[0], device=device).long()
        for reduction in ("none", "mean", "sum"):
            loss = detops.softmax_focal_loss(empty, labels, reduction=reduction)
            assert (loss == 0).all()
            loss.sum().backward()
        assert empty.grad.shape == shape


def test_softmax_focal_loss_accepts_any_layout_and_dtype(device):
    x, t, weight = case(30, 12, device=device)
    expected = detops.softmax_focal_loss(x, t, weight=weight)
    strided = x.detach().t().contiguous().t().requires_grad_()
    found = detops.softmax_focal_loss(
        strided, torch.stack([t, t], 1)[:, 0], weight=weight.double().expand(2, 12)[1]
    )
    assert torch.equal(found, expected)
    ours, theirs = torch.autograd.grad(found.sum(), strided), torch.autograd.grad(expected.sum(), x)
    assert torch.equal(ours[0], theirs[0])
    for dtype in (torch.int8, torch.int16, torch.int32):
        assert torch.equal(detops.softmax_focal_loss(x, t.to(dtype), weight=weight), expected)
    half = weight.half().requires_grad_()
    detops.softmax_focal_loss(x, t, weight=half).sum().backward()
    assert half.grad.dtype == torch.float16
    with torch.autocast(device, torch.bfloat16):
        narrow = x.detach().bfloat16()
        found = detops.softmax_focal_loss(narrow, t)
        assert torch.equal(found, detops.softmax_focal_loss(narrow.float(), t))


def test_any_number_of_threads_gives_the_same_bits(two_threads):
    x, t, weight = case(5000, 21)

    def forward_and_backward():
        loss = detops.softmax_focal_loss(x, t, weight=weight)
        return loss, *torch.autograd.grad(loss.square().sum(), x)

    for a, b in zip(*two_threads(forward_and_backward), strict=True):
        assert torch.equal(a, b)


@pytest.mark.slow
def test_op_passes_opcheck_compiles_and_vmaps():
    x, t, weight = case(6, 5)
    logits = x.detach()
    for weight_or_none in (None, weight):
        torch.library.opcheck(
            _C.softmax_focal_loss_forward.default, (logits, t, weight_or_none, 0.25, 2.0)
        )
        torch.library.opcheck(
            _C.softmax_focal_loss_backward.default,
            (torch.rand(6), logits, t, weight_or_none, 0.25, 1.5),
        )
    op = torch.ops.detops.softmax_focal_loss
    assert torch.equal(
        op(x, t, 0.3, 1.5, weight, "sum"),
        detops.softmax_focal_loss(x, t, 0.3, 1.5, weight, "sum"),
    )
    compiled = torch.compile(
        detops.softmax_focal_loss, fullgraph=True, dynamic=True, backend="aot_eager"
    )
    (found,) = torch.autograd.grad(compiled(x, t, weight=weight).sum(), x)
    (expected,) = torch.autograd.grad(detops.softmax_focal_loss(x, t, weight=weight).sum(), x)
    torch.testing.assert_close(found, expected)
    stacked = torch.stack([x.detach(), x.detach() + torch.rand(6, 5)])
    found = torch.vmap(detops.softmax_focal_loss, in_dims=(0, None))(stacked, t)
    assert torch.equal(found, torch.stack([detops.softmax_focal_loss(a, t) for a in stacked]))


X, T = torch.rand(4, 3), torch.zeros(4).long()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f(X[0], T), r"inputs must be \[N, C\], got \[3\]"),
        (lambda f: f(X, T[:2]), r"targets must be \[4\], got \[2\]"),
        (lambda f: f(X, T.float()), "targets must be int64.*got float32"),
        (lambda f: f(X, T, weight=X[0, :2]), r"weight must be \[3\], got \[2\]"),
        (lambda f: f(X.long(), T), "inputs must be float32.*got int64"),
        (lambda f: f(X, T, math.nan), "alpha must be finite, got nan"),
        (lambda f: f(X, T, 1.0, math.inf), "gamma must be finite, got inf"),
        (lambda f: f(X, T.to("meta")), "targets must be on the device of inputs"),
    ],
)
def test_softmax_focal_loss_rejects_bad_input(call, message):
    with pytest.raises(RuntimeError, match=f"detops.softmax_focal_loss: {message}"):
        call(detops.softmax_focal_loss)


def test_unknown_reduction_raises():
    with pytest.raises(ValueError, match="reduction must be none, mean or sum, got max"):
        detops.softmax_focal_loss(X, T, reduction="max")
