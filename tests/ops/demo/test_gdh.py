import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import detops


def layouts(x):
    """Yields a [4, 6, 5] tensor and views of it in other layouts."""
    yield x
    yield x.transpose(0, 2)
    yield x.permute(1, 2, 0)
    yield x[:, ::2]
    yield x[1:, 1:, 1:]
    yield x[:1].expand(3, 6, 5)
    yield x.flip(0).t() if x.dim() == 2 else x.flip(0).mT
    yield x[:0]
    yield x[0, 0, 0]
    yield x.transpose(0, 1)[:, :, 3]


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.bfloat16, torch.int8, torch.bool, torch.complex128],
)
def test_gdh_equals_contiguous_view(device, dtype):
    for x in layouts((torch.randn(4, 6, 5, device=device) * 10).to(dtype)):
        y = detops.gdh(x)
        assert y.dim() == 1 and torch.equal(y, x.contiguous().view(-1))
        assert (y.data_ptr() == x.data_ptr()) == (x.is_contiguous())


def test_gdh_of_contiguous_tensor_is_a_view(device):
    x = torch.zeros(2, 3, device=device)
    detops.gdh(x)[4] = 1
    assert x[1, 1] == 1
    base = torch.randn(2, 3, device=device, requires_grad=True)
    x = base * 1
    detops.gdh(x).mul_(3)  # autograd sees that x changes
    x.sum().backward()
    assert torch.equal(base.grad, torch.full((2, 3), 3.0, device=device))
    copy = detops.gdh(x.detach().t())
    copy.zero_()
    assert x.any()


def test_functionalization_replays_writes_to_the_view():
    def double_through_the_view(x):
        x = x * 1
        detops.gdh(x).mul_(2)
        return x, detops.gdh(x.t())

    x = torch.randn(3, 4)
    expected = double_through_the_view(x)
    functional = torch.func.functionalize(double_through_the_view)(x)
    compiled = torch.compile(double_through_the_view, fullgraph=True, backend="aot_eager")(x)
    for results in (functional, compiled):
        for result, expected_result in zip(results, expected, strict=True):
            torch.testing.assert_close(result, expected_result)


def test_derivatives_pass_gradcheck(device):
    x = torch.randn(3, 4, dtype=torch.float64, device=device, requires_grad=True)
    for f in (detops.gdh, lambda x: detops.gdh(x.t()), lambda x: detops.gdh(x[:, 1:].expand(3, 3))):
        assert gradcheck(f, (x,)) and gradgradcheck(f, (x,))
    y = torch.randn(6, 4, device=device, requires_grad=True)
    detops.gdh(y.t()).backward(torch.arange(24.0, device=device))
    assert torch.equal(y.grad, torch.arange(24.0, device=device).view(4, 6).t())


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex128]
)
@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (2, 1, 0), (1, 0, 2)])
def test_two_threads_give_the_same_large_result(two_threads, order, dtype, device):
    """Covers whole and partial squares, and threads that begin within a row."""
    x = torch.arange(7 * 211 * 103).reshape(7, 211, 103).to(device, dtype).permute(order)
    for view in (x, x[..., 1:-1], x[:, ::3]):
        one, two = two_threads(lambda view=view: detops.gdh(view))
        assert torch.equal(one, view.reshape(-1)) and torch.equal(one, two)


def test_registered_tensor_method_calls_gdh(device):
    assert not hasattr(torch.Tensor, "gdh")
    detops.register_tensor_methods()
    try:
        x = torch.randn(3, 4, device=device)
        assert torch.equal(x.t().gdh(), x.t().reshape(-1))
        assert torch.equal(torch.ops.detops.gdh(x), x.view(-1))
    finally:
        del torch.Tensor.gdh


def test_sparse_tensor_raises(device):
    sparse = torch.eye(3, device=device).to_sparse()
    with pytest.raises(RuntimeError, match="detops.gdh: x must be strided, got torch.sparse_coo"):
        detops.gdh(sparse)


@pytest.mark.slow
def test_gdh_passes_opcheck_and_supports_vmap():
    x = torch.randn(3, 4)
    torch.library.opcheck(torch.ops.detops.gdh_forward.default, (x.t(),))
    torch.library.opcheck(torch.ops.detops.gdh.default, (x.t().requires_grad_(),))
    batch = torch.randn(5, 3, 4)
    assert torch.equal(torch.func.vmap(detops.gdh)(batch), batch.reshape(5, 12))
    assert torch.equal(
        torch.func.vmap(detops.gdh, in_dims=1)(batch), batch.transpose(0, 1).reshape(3, 20)
    )
