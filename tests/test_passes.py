"""The passes in C of small ops' derivatives are those in Python."""

import itertools
import sys

import pytest
import torch

from detops.ops.lltm import LltmCellFunction
from detops.ops.mlp import MlpFunction

SIZES = {
    MlpFunction: [(3, 5), (4, 5), (1, 4), (2, 4), (1, 2)],
    LltmCellFunction: [(2, 3), (15, 8), (15,), (2, 5), (2, 5)],
}
FUNCTIONS = pytest.mark.parametrize("function", SIZES, ids=lambda f: f.__name__)


def arguments(function, wanted=(True,) * 5):
    generator = torch.Generator().manual_seed(0)
    sizes = SIZES[function]
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in sizes]
    return [x.requires_grad_(w) for x, w in zip(tensors, wanted, strict=True)]


def total(outputs):
    return sum((k + 2) * o.sin().sum() for k, o in enumerate(outputs))


@FUNCTIONS
def test_equal_whatever_is_wanted(function):
    for wanted in itertools.product([False, True], repeat=5):
        if not any(wanted):
            continue
        found = []
        for run in (function._recorded, lambda *x: function.apply(*x)[: function.shown]):
            args = arguments(function, wanted)
            outputs = run(*args)
            assert len(outputs) == function.shown
            total(outputs).backward()
            found.append([*outputs, *(x.grad for x in args)])
        for ours, python in zip(*found, strict=True):
            assert (ours is None) == (python is None)
            assert ours is None or torch.equal(ours, python)


@FUNCTIONS
def test_a_result_without_a_gradient_counts_as_zeros(function):
    args = arguments(function)
    last = function._recorded(*args)[-1].sum()
    whole = function.apply(*args)[: function.shown][-1].sum()
    for a, b in zip(*(torch.autograd.grad(x, args) for x in (last, whole)), strict=True):
        assert torch.equal(a, b)


@FUNCTIONS
def test_gradients_of_gradients_are_refused(function):
    args = arguments(function)
    (grad,) = torch.autograd.grad(total(function._recorded(*args)), args[1], create_graph=True)
    with pytest.raises(RuntimeError, match=f"{function.passes}_backward is not implemented"):
        grad.sum().backward()


@FUNCTIONS
def test_many_gradients_at_once(function):
    args = arguments(function)
    output = function._recorded(*args)[0]
    each = torch.eye(output.numel(), dtype=output.dtype).view(-1, *output.shape)
    together = torch.autograd.grad(output, args, each, is_grads_batched=True, retain_graph=True)
    for k, one in enumerate(each):
        for a, b in zip(
            together, torch.autograd.grad(output, args, one, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(a[k], b)


@FUNCTIONS
def test_what_is_kept_goes_through_hooks_and_is_watched(function):
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x, lambda x: x):
        outputs = function._recorded(*arguments(function))
    assert len(packed) == len(outputs[0].grad_fn.saved_tensors) > 3
    total(outputs).backward()
    args = arguments(function)
    outputs = function._recorded(*args)
    with torch.no_grad():
        args[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total(outputs).backward()


@FUNCTIONS
def test_what_is_wrong_is_an_error(function):
    args = arguments(function)
    with pytest.raises(RuntimeError):
        function._recorded()
    with pytest.raises(RuntimeError):
        function._recorded(*args[:4])
    with pytest.raises(RuntimeError):
        function._recorded(*args, args[0])
    outputs = function._recorded(*args)
    node = outputs[0].grad_fn
    grads = [torch.ones_like(o) for o in outputs]
    expected = torch.autograd.grad(outputs, args, grads, retain_graph=True)
    with torch.no_grad():
        for wrong in ([], [*grads, grads[0]], [None] * len(grads), [1] * len(grads)):
            with pytest.raises(RuntimeError):
                node.apply(*wrong)
        assert all(map(torch.equal, node.apply(*grads), expected))
        for made in (type(node).apply, type(node)._forward_cls.forward):
            with pytest.raises(RuntimeError, match="without its arguments"):
                made()
        with pytest.raises(AttributeError):
            type(node).apply(object(), *grads)
    torch.autograd.backward(outputs, grads)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.backward(outputs, grads)


@FUNCTIONS
def test_nothing_is_kept_alive(function):
    args = arguments(function)
    counted = [*args, None]
    total(function._recorded(*args)).backward()  # makes what stays
    before = [sys.getrefcount(x) for x in counted]
    for _ in range(100):
        total(function._recorded(*args)).backward()
        with pytest.raises(RuntimeError):
            function._recorded(*args[:4])
    after = [sys.getrefcount(x) for x in counted]
    assert after[:-1] == before[:-1]
    assert abs(after[-1] - before[-1]) < 50 or sys.version_info >= (3, 12)  # None is immortal


class NoGradient(torch.autograd.Function):
    """Its input gets none, not zeros."""

    forward = staticmethod(lambda ctx, x: x.clone())
    backward = staticmethod(lambda ctx, grad: None)


@FUNCTIONS
def test_no_gradient_gives_none(function):
    args = arguments(function)
    outputs = function.apply(*args)[: function.shown]
    sum(NoGradient.apply(o).sum() for o in outputs).backward()
    assert all(x.grad is None for x in args)
    first, *rest = function.apply(*args)[: function.shown]
    (first.sum() + sum(NoGradient.apply(o).sum() for o in rest)).backward()
    alone = torch.autograd.grad(function._recorded(*args)[0].sum(), args)
    assert all(map(torch.equal, [x.grad for x in args], alone))
