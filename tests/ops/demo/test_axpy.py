import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import detops


def test_walk_through_gives_the_expected_values(device):
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    y = torch.tensor([4.0, 5.0, 6.0], device=device, requires_grad=True)
    z = detops.axpy(x, y)
    assert z.tolist() == [6, 9, 12]
    z.backward(torch.tensor([1.0, 10.0, 100.0], device=device))
    assert x.grad.tolist() == [2, 20, 200] and y.grad.tolist() == [1, 10, 100]
    assert detops._C.axpy_forward(x.detach(), y.detach()).tolist() == [6, 9, 12]
    grad_x, grad_y = detops._C.axpy_backward(torch.ones(3, device=device))
    assert grad_x.tolist() == [2, 2, 2] and grad_y.tolist() == [1, 1, 1]
    assert detops.Axpy(alpha=-1)(x, y).tolist() == [3, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded", "strided", "empty"])
def test_axpy_matches_float64_in_every_dtype_and_layout(device, dtype, layout):
    x, y = torch.randn(2, 40, 33, device=device).to(dtype)
    if layout == "transposed":
        x, y = x.t(), y.t()
    elif layout == "expanded":
        x, y = x[:, :1].expand(40, 33), y
    elif layout == "strided":
        x, y = x[::2, ::3], y[1::2, ::3]
    elif layout == "empty":
        x, y = x[:0], y[:0]
    expected = (0.5 * x.double() + y.double()).to(dtype)
    torch.testing.assert_close(detops.axpy(x, y, 0.5), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_axpy_accepts_unaligned_memory(device, dtype):
    for count in (1, 7, 16, 4099):
        for shift in (0, 1):
            x, y, grad = torch.randn(3, count + shift, device=device).to(dtype)[:, shift:].unbind()
            expected = (2 * x.double() + y.double()).to(dtype)
            assert torch.equal(detops.axpy(x, y), expected)
            grad_x, grad_y = detops._C.axpy_backward(grad, 2.0)
            assert torch.equal(grad_x, 2 * grad) and torch.equal(grad_y, grad)


def test_two_threads_give_the_same_bits(two_threads):
    x, y = torch.randn(2, 100_003)
    one, two = two_threads(lambda: detops.axpy(x, y))
    assert torch.equal(one, two) and torch.equal(one, 2 * x + y)


def test_derivatives_pass_gradcheck(device):
    x, y = (torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True) for _ in "xy")
    assert gradcheck(detops.axpy, (x, y)) and gradgradcheck(detops.axpy, (x, y))
    assert gradcheck(lambda x: detops.axpy(x, y.detach()), (x,))


def test_errors_name_the_bad_argument(device):
    x = torch.randn(3, device=device)
    for y, message in [
        (torch.randn(4, device=device), r"detops.axpy: y must be \[3\], got \[4\]"),
        (torch.randn(1, 3, device=device), r"y must be \[3\], got \[1, 3\]"),
        (x.double(), r"y must have the dtype of x \(float32\), got float64"),
        (x.to("meta"), "y must be on the device of x"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            detops.axpy(x, y)
    with pytest.raises(RuntimeError, match=r"x must be float32.*got int64"):
        detops.axpy(x.long(), x.long())


@pytest.mark.slow
def test_axpy_passes_opcheck_and_compiles():
    x, y = torch.randn(2, 5, requires_grad=True)
    ops = torch.ops.detops
    torch.library.opcheck(ops.axpy.default, (x.detach().requires_grad_(), y.detach()))
    torch.library.opcheck(ops.axpy_forward.default, (x.detach(), y.detach(), 3.0))
    torch.library.opcheck(ops.axpy_backward.default, (x.detach(), 3.0))
    compiled = torch.compile(detops.axpy, fullgraph=True, dynamic=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, y), 2 * x + y)


def test_forward_mode_gives_the_tangent():
    import torch.autograd.forward_ad as forward_ad

    x = torch.randn(3)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(3))
        found = forward_ad.unpack_dual(detops.axpy(dual, x)).tangent
        assert torch.equal(found, torch.full([3], 2.0))
