"""Call paths of an op: which one runs, and that all give the same results."""

import pytest
import torch
from calls import CALLS
from torch._prims_common import suggest_memory_format
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import detops
from detops.ops._shared import Function

DIFFERENTIABLE = [call for call in CALLS if call.differentiable]
IDS = [call.name for call in DIFFERENTIABLE]


def fail_if_called(*_):
    raise AssertionError("an autograd Function ran")


def subclasses(of):
    return [each for cls in of.__subclasses__() for each in [cls, *subclasses(cls)]]


@pytest.fixture
def disable_methods(monkeypatch):
    """Disables methods that run a Function, in all of its subclasses."""

    def disable(*names):
        for function in subclasses(Function):
            for name in names:
                monkeypatch.setattr(function, name, fail_if_called)

    return disable


@pytest.mark.parametrize("op", [detops.axpy, lambda *x: detops.mlp(*x, *x[:1], *x[:1], *x[:1])])
def test_disabled_record_method_fails_calls_that_use_it(op, disable_methods):
    x = torch.ones(1, 1)
    assert op(x.requires_grad_(), x).requires_grad
    disable_methods("_record")
    with pytest.raises(AssertionError, match="ran"):
        op(x, x)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=IDS)
def test_calls_without_gradients_skip_autograd_functions(call, disable_methods):
    tensors = call.tensors()
    expected = [o.detach() for o in call.forward(tensors)]
    disable_methods("apply", "_record")
    with torch.no_grad():
        results = [call.forward(tensors)]
    with torch.inference_mode():
        results.append(call.forward(tensors))
    results.append(call.forward({name: t.detach() for name, t in tensors.items()}))
    for found in results:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        assert not any(o.requires_grad for o in found)


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=IDS)
def test_calls_with_gradients_use_record_instead_of_apply(call, disable_methods):
    disable_methods("apply")
    tensors = call.tensors()
    grads = call.results(tensors)[-len(call.differentiable) :]
    assert all(g.shape == tensors[n].shape for n, g in zip(call.differentiable, grads, strict=True))


class OpRecorder(TorchDispatchMode):
    """A mode that only records the names of the detops ops."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "detops":
            self.names.append(func._schema.name.removeprefix("detops::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=IDS)
def test_dispatch_mode_gives_the_same_results(call):
    expected = call.results(call.tensors())
    with OpRecorder():
        found = call.results(call.tensors())
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


# An ATen view, and recurrences that always call a raw op.
COMPOSITE = ("gdh", "lltm_cell", "lltm")


@pytest.mark.parametrize(
    "call", [c for c in DIFFERENTIABLE if c.name not in COMPOSITE], ids=lambda call: call.name
)
def test_dispatch_mode_sees_differentiable_ops(call):
    with torch.no_grad(), OpRecorder() as recorder:
        call.forward(call.tensors())
    assert set(recorder.names) <= detops.registration.DIFFERENTIABLE and recorder.names


@pytest.mark.parametrize("call", DIFFERENTIABLE, ids=IDS)
def test_fake_results_match_real_shapes_dtypes_and_strides(call):
    real = call.tensors()
    expected = call.results(real)
    mode = FakeTensorMode()
    fake = {name: mode.from_tensor(t) for name, t in real.items()}
    with mode:
        found = call.results(fake)
    assert [(x.shape, x.dtype, x.stride()) for x in found] == [
        (x.shape, x.dtype, x.stride()) for x in expected
    ]


X = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)
ROIS = torch.tensor([[0.0, 1, 1, 6, 5]])


def pool(x):
    return detops.roi_align(x, ROIS, 2, 1.0, 2)


def test_transforms_use_apply_instead_of_record(disable_methods):
    def total(x):
        return pool(x).sum()

    expected = torch.autograd.grad(total(X.requires_grad_()), X)[0]
    disable_methods("_record")
    batch = torch.stack([X.detach(), X.detach() + 1])
    assert torch.equal(torch.func.grad(total)(X), expected)
    with torch.no_grad():
        assert torch.equal(torch.vmap(pool)(batch)[0], pool(X))
        assert torch.equal(torch.vmap(torch.func.grad(total))(batch)[1], expected)


class Subclass(torch.Tensor):
    """Records the functions that are called with it."""

    seen: list = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(str(func))
        return super().__torch_function__(func, types, args, kwargs)


def test_tensor_subclass_sees_the_op():
    Subclass.seen.clear()
    found = pool(X.detach().as_subclass(Subclass))
    assert type(found) is Subclass and torch.equal(found.as_subclass(torch.Tensor), pool(X))
    assert any("detops.roi_align" in name and "forward" not in name for name in Subclass.seen)


def test_torch_function_mode_sees_the_op():
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Mode():
        pool(X.detach())
    assert any("detops.roi_align" in name and "forward" not in name for name in seen)


def test_tensor_that_escaped_its_transform_is_a_regular_tensor():
    escaped = []

    def keep(x):
        escaped.append(x)
        return x.sum()

    torch.func.grad(keep)(X.detach())
    pooled = pool(escaped[0])
    assert not pooled.requires_grad and torch.equal(pooled, pool(X.detach()))


def test_only_calls_that_require_gradients_are_recorded():
    a, b = torch.rand(3, 4).cumsum(1), torch.rand(2, 4).cumsum(1)
    assert detops.box_iou(a, b.requires_grad_()).requires_grad
    assert not detops.box_iou(a, a).requires_grad
    assert detops.roi_align(X.detach(), ROIS, 2).grad_fn is None


def test_grad_fn_has_the_name_of_the_op():
    overlap = detops.box_iou(torch.rand(2, 4, requires_grad=True), torch.rand(2, 4))
    assert type(overlap.grad_fn).__name__ == "BoxIoUFunctionBackward"


@pytest.mark.parametrize("gradient", [True, False])
def test_forward_mode_raises_without_a_rule(gradient):
    with torch.autograd.forward_ad.dual_level(), torch.set_grad_enabled(gradient):
        dual = torch.autograd.forward_ad.make_dual(X.detach(), torch.ones_like(X))
        with pytest.raises(NotImplementedError, match="forward"):
            detops.roi_pool(dual, ROIS, 2)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64])
def test_list_of_boxes_equals_the_concatenated_tensor(count, dtype):
    lists = [(torch.rand(i, 4).cumsum(1) * 3).to(dtype) for i in range(count)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    rows = [torch.cat([torch.full((i, 1), float(i)), b], 1) for i, b in enumerate(lists)]
    maps = X.detach().expand(count, 1, 8, 8)
    found = detops.roi_align(maps, lists, 2, 1.0, 2)
    assert torch.equal(found, detops.roi_align(maps, torch.cat(rows).to(wide), 2, 1.0, 2))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (2, 1, 6, 5), (2, 4, 1, 1), (1, 1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradient_of_a_sum_equals_gradient_of_ones(layout, shape, dtype):
    """The gradient is one expanded element; the input's gradient keeps the input's layout."""
    x = torch.randn(shape).to(dtype).contiguous(memory_format=layout).requires_grad_()
    boxes = torch.tensor([[0.0, 0, 0, 4, 4], [0, -1, 0, 3, 5]])
    rotated = torch.cat([boxes, torch.full((2, 1), 30.0)], 1)
    for pooled in (
        detops.roi_align(x, boxes, 2),
        detops.roi_pool(x, boxes, 2),
        detops.roi_align_rotated(x, rotated, 2),
        detops.ps_roi_align(x, boxes, 1),
        detops.ps_roi_pool(x, boxes, 1),
        detops.multiscale_roi_align([x], boxes, 2, [1.0]),
    ):
        (grad_of_sum,) = torch.autograd.grad(3 * pooled.sum(), x, retain_graph=True)
        ones = torch.full_like(pooled, 3)
        (grad_of_ones,) = torch.autograd.grad(pooled, x, ones, retain_graph=True)
        assert torch.equal(grad_of_sum, grad_of_ones)
        assert suggest_memory_format(grad_of_sum) == suggest_memory_format(x)
