# SPDX-License-Identifier: MIT
"""The Python part of ``torch.ops.detops``: fake kernels, autocast, derivatives, composite ops."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, is_grad_enabled
from torch._C import (
    _are_functorch_transforms_active,
    _AutoDispatchBelowAutograd,
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling
from torch.jit._builtins import _register_builtin
from torch.nn import Parameter

from . import _C
from .contract import Contract, read

F = TypeVar("F", bound=Callable[..., Any])
CONTRACTS: dict[str, Contract] = read(_C.contracts)
_LIBRARY = torch.library.Library("detops", "IMPL")

for _contract in CONTRACTS.values():
    if _contract.outputs:
        torch.library.register_fake(f"detops::{_contract.op}", _contract.fake, lib=_LIBRARY)


# Under autocast these compute and return float32. The other ops do so anyway, or accumulate in
# float32 and return the dtype of their features.
IN_FLOAT32 = (
    "soft_nms matrix_nms encode_boxes encode_boxes_forward decode_boxes decode_boxes_forward "
    "sigmoid_focal_loss_elements sigmoid_focal_loss_forward sigmoid_focal_loss_sum axpy mlp "
    "lltm_cell lltm"
).split()
_AUTOCAST = ("AutocastCPU", "AutocastCUDA")
_NO_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU) | torch._C.DispatchKeySet(
    torch._C.DispatchKey.AutocastCUDA
)


def in_float32(x: Any) -> Any:
    """Converts a half-precision argument to float32, as autocast does."""
    is_half = isinstance(x, torch.Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return x.float() if is_half else x


def _autocast(op: str) -> Callable[..., Any]:
    overload = getattr(torch.ops.detops, op).default

    def cast(*args: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_NO_AUTOCAST):
            return overload(*map(in_float32, args))

    return cast


for _op in IN_FLOAT32:
    for _key in _AUTOCAST:  # not register_autocast: in 2.11, its last call sets both keys
        _LIBRARY.impl(_op, _autocast(_op), _key)


def _missing_cuda_kernel(op: str) -> Callable[..., Any]:
    def raise_error(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"detops::{op}: this build of detops has no CUDA kernels, got tensors on a GPU; "
            "install a build with CUDA kernels, or a CUDA toolkit and rebuild with FORCE_CUDA=1"
        )

    return raise_error


if _C.cuda_version is None:
    for _contract in CONTRACTS.values():
        if _contract.outputs:
            _LIBRARY.impl(_contract.op, _missing_cuda_kernel(_contract.op), "CUDA")


def is_transformed() -> bool:
    """Returns whether torch.func or forward mode is active: both use separate rules."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def needs_autograd(args: Sequence[Any]) -> bool:
    """Returns whether the call must go through autograd."""
    if is_transformed():
        return True
    if is_grad_enabled():
        for x in args:
            if getattr(x, "requires_grad", False):
                return True
            if isinstance(x, (list, tuple)) and needs_autograd(x):
                return True
    return False


def is_intercepted() -> bool:
    """Returns whether anything in PyTorch records, casts or transforms calls of ops."""
    return (
        is_transformed()
        or _is_any_autocast_enabled()
        or _get_tracing_state() is not None
        or _len_torch_dispatch_stack() > 0
        or _len_torch_function_stack() > 0
    )


def _requires_grad(args: Sequence[Any]) -> bool | None:
    """Returns whether a tensor requires a gradient, or None if one is of a subclass of Tensor."""
    required = False
    for x in args:
        kind = type(x)
        if kind is Tensor or kind is Parameter:
            required = required or x.requires_grad
        elif kind is list or kind is tuple:
            inner = _requires_grad(x)
            if inner is None:
                return None
            required = required or inner
        elif isinstance(x, Tensor):
            return None
    return required


def _overload(op: str) -> Any:
    return getattr(torch.ops.detops, op).default


# Every op that `derivative` registered.
DIFFERENTIABLE: set[str] = set()


def implementation(op: str, key: str, function: Callable[..., Any]) -> None:
    """Registers ``function`` as the op's kernel for a dispatch key."""
    defaults = tuple(formal.default_value for formal in _overload(op)._schema.arguments)

    def run(*args: Any) -> Any:
        # The dispatcher leaves out trailing arguments that have their default values.
        args += defaults[len(args) :]
        try:
            return function(*args)
        except Exception as error:
            raise CONTRACTS[op].explain_error(args, error) from None

    _LIBRARY.impl(op, run, key)


# This key is above those of torch.func: there, an autograd function finds its transform rules.
_TRANSFORMS = "FuncTorchDynamicLayerFrontMode"


def _public(op: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the callable for the op's public function: ``run`` with errors explained.

    Graphs of ``torch.compile`` and TorchScript contain the op itself.
    """
    overload = _overload(op)

    def call(*args: Any) -> Any:
        if is_dynamo_compiling():
            return overload(*args)
        try:
            return run(*args)
        except Exception as error:
            raise CONTRACTS[op].explain_error(args, error) from None

    _register_builtin(call, f"detops::{op}")
    return call


def dispatcher_op(op: str) -> Callable[..., Any]:
    """Returns the callable of an op that needs nothing from Python."""
    return _public(op, _overload(op)._op)


def kernel(op: str) -> Callable[..., Any]:
    """Returns the op below autograd."""
    run = _overload(op)._op

    def below_autograd(*args: Any) -> Any:
        with _AutoDispatchBelowAutograd():
            return run(*args)

    return below_autograd


def constant(op: str) -> Callable[..., Any]:
    """Registers an op whose results never require a gradient."""
    below_autograd = kernel(op)
    implementation(op, "Autograd", below_autograd)
    return _public(op, below_autograd)


def derivative(
    op: str, function: Callable[..., Any], raw: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Registers ``function``, an autograd function over raw ops, as the op's derivative.

    Args:
        op: name of the op.
        function: the op's implementation for autograd.
        raw: a raw op with the same result. It has no autograd kernel to bypass, which makes small
            calls faster.
    """
    DIFFERENTIABLE.add(op)
    return through_autograd(op, function, raw)


def through_autograd(
    op: str, function: Callable[..., Any], raw: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Registers ``function`` as the op's autograd kernel; see :func:`derivative`.

    The public function has a shortcut. If nothing in PyTorch records or transforms the call, the
    dispatcher only selects ``function``, or the kernel if no gradient is required, and takes longer
    than a small op. The public function then calls one of them directly. Without the shortcut,
    "roi_align, 1 RoI" and "box_iou, 1 box" of ``detops bench corners`` would take three times as
    long.
    """
    run, below_autograd, types = _overload(op)._op, kernel(op), CONTRACTS[op].types
    fast_path = below_autograd if raw is None else raw
    tensors = 1 + max(i for i, type_ in enumerate(types) if type_.startswith("Tensor"))

    def autograd(*args: Any) -> Any:
        return (function if needs_autograd(args) else below_autograd)(*args)

    def shortcut(*args: Any) -> Any:
        required = None if is_intercepted() else _requires_grad(args[:tensors])
        if required is None:
            return run(*args)
        return (function if required and is_grad_enabled() else fast_path)(*args)

    for key in ("Autograd", _TRANSFORMS):
        implementation(op, key, autograd)
    return _public(op, shortcut)


def composition(op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Registers ``function``, which calls the public functions of other ops, as a composite op."""
    for key in ("CompositeImplicitAutograd", _TRANSFORMS):
        implementation(op, key, function)
    return _public(op, function)


def unscriptable(function: F) -> F:
    """Makes TorchScript reject ``function`` with one line that names the op to call instead."""
    name = function.__name__
    function.__script_unsupported = (  # type: ignore[attr-defined]
        f"detops.{name} cannot be scripted: call torch.ops.detops.{name}, which accepts and "
        "returns only tensors"
    )
    return function


def register_in_place(op: str, function: Callable[..., Any]) -> None:
    """Registers ``function``, which writes into its arguments, as an op without a derivative.

    Negated and conjugated views are passed through: the dispatcher would replace them with copies,
    and resizing a copy would leave the caller's buffer unchanged.
    """
    implementation(op, "CompositeExplicitAutograd", function)
    for key in ("Negative", "Conjugate"):
        _LIBRARY.impl(op, torch.library.fallthrough_kernel, key)
