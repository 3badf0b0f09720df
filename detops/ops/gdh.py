"""contiguous().view(-1): an op in the style of ATen."""

from typing import Any

import torch
from torch import Tensor

from ..contract_call import check_dense
from ..registration import composition, implementation, is_intercepted
from ._shared import Function

_copy = torch.ops.detops.gdh_forward.default


class GdhFunction(Function):
    """Autograd function that copies a tensor that is not contiguous."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        """Runs the kernel."""
        return _copy(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the sizes."""
        ctx.sizes = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Restores the shape: the op only moves elements, so gradients only move back."""
        return grad.reshape(ctx.sizes)


def _view(x: Tensor) -> Tensor:
    check_dense("gdh", "x", x)
    # ATen's view registers with autograd and functionalization that memory is shared. Compilers and
    # transforms make their own copies, and may not have decided yet whether to copy.
    if torch.compiler.is_compiling() or is_intercepted() or x.is_contiguous():
        return x.contiguous().view(-1)
    flat: Tensor = GdhFunction.run(x)
    return flat


_gdh = composition("gdh", _view)
# Functionalization and vmap support only views of ATen, so they run the calls behind gdh.
for _key in ("Functionalize", "FuncTorchBatched"):
    implementation("gdh", _key, lambda x: x.contiguous().view(-1))


def gdh(x: Tensor) -> Tensor:
    """Returns ``x.contiguous().view(-1)``, differentiable any number of times.

    Args:
        x: strided tensor of any shape and any dtype that is not quantized.

    Returns:
        ``[numel]``: a view of ``x`` if it is contiguous, else a copy.

    Raises:
        RuntimeError: ``x`` is quantized, nested, sparse or otherwise not strided.

    Example:
        >>> gdh(torch.tensor([[1, 2], [3, 4]]).T)
        tensor([1, 3, 2, 4])
    """
    return _gdh(x)


def register_tensor_methods() -> None:
    """Makes :func:`gdh` a method of every tensor: ``x.gdh()``.

    Example:
        >>> register_tensor_methods()
        >>> torch.ones(2, 3).gdh().shape
        torch.Size([6])
    """
    torch.Tensor.gdh = gdh  # type: ignore[attr-defined]
