"""The LLTM, a recurrent cell without a forget gate: one step, and a whole sequence."""

import math
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from ..module import Module
from ..registration import CONTRACTS, derivative
from ._shared import Function, raw

# Resolved once: the lookup costs about as much as the op.
_forward = torch.ops.detops.lltm_forward.default
_backward = torch.ops.detops.lltm_backward.default


def _last_step(steps: Tensor, initial: Tensor) -> Tensor:
    """Returns a copy of the last state or cell, which the next call starts from."""
    return steps[-1].to(initial.dtype, copy=True) if steps.size(0) else initial.clone()


class LltmCellFunction(Function):
    """Autograd function of one step, in at least float32. Differentiable once in all arguments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the kernel."""
        return _forward(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        """Keeps all arguments except the bias, and all outputs."""
        input, weights, _, h, c = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, weights, h, c, *output)

    @staticmethod
    def backward(
        ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, _: None
    ) -> tuple[Tensor | None, ...]:
        """Propagates the gradients through one step."""
        return _backward_step(ctx, grad_h, None, grad_c)


def _backward_step(
    ctx: Any, grad_output: Tensor | None, grad_h: Tensor | None, grad_c: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved, needs_grad = ctx.saved_tensors, ctx.needs_input_grad
    if grad_output is None:
        grad_output = torch.zeros_like(saved[4])
    if grad_c is None:
        grad_c = torch.zeros_like(saved[3])
    grad_input, grad_weights, grad_bias, grad_h0, grad_c0 = raw(
        _backward, grad_output, grad_h, grad_c, *saved, needs_grad[0], needs_grad[3]
    )
    grad_input, grad_h0 = grad_input if needs_grad[0] else None, grad_h0 if needs_grad[3] else None
    return grad_input, grad_weights, grad_bias, grad_h0, grad_c0


class LltmFunction(Function):
    """Autograd function of a sequence: all states, the last state and the last cell.

    Differentiable once in all arguments.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, ...]:
        """Runs the kernel."""
        output, cells, gates = _forward(*tensors)
        return output, _last_step(output, tensors[3]), _last_step(cells, tensors[4]), cells, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        """Keeps all arguments except the bias, and all states, cells and gates."""
        input, weights, _, h, c = inputs
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(input, weights, h, c, output[0], *output[3:])

    @staticmethod
    def backward(
        ctx: Any, grad_output: Tensor | None, grad_h: Tensor | None, grad_c: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        """Propagates the gradients through all steps."""
        return _backward_step(ctx, grad_output, grad_h, grad_c)


_NAMES = ("input", "weights", "bias", "h", "c")


def _cell(*args: Tensor) -> tuple[Tensor, Tensor]:
    CONTRACTS["lltm_cell"].check(dict(zip(_NAMES, args, strict=True)))  # lltm shares the raw op
    new_h, new_c, _ = LltmCellFunction.run(*args)
    return new_h, new_c.to(new_h.dtype)


_lltm_cell = derivative("lltm_cell", _cell)
_lltm = derivative("lltm", lambda *args: LltmFunction.run(*args)[:3])


@torch.fx.wrap
def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Computes one step of the LLTM of the PyTorch tutorial "Custom C++ and CUDA Extensions".

    With ``i, o, g = [h, input] @ weights.T + bias``, split into three equal parts::

        c' = c + elu(g) * sigmoid(i)
        h' = tanh(c') * sigmoid(o)

    Differentiable once in all arguments.

    Args:
        input: ``[B, I]``, floating.
        weights: ``[3H, H + I]``; like all following arguments, it has the dtype and device of
            ``input``.
        bias: ``[3H]``.
        h: ``[B, H]``, the previous state.
        c: ``[B, H]``, the previous cell.

    Returns:
        The new state and the new cell, ``[B, H]`` each.

    Raises:
        RuntimeError: wrong shape, dtype or device.

    Example:
        >>> zeros, one = torch.zeros(3, 3), torch.ones(1, 1)
        >>> lltm_cell(zeros[:1, :2], zeros, zeros[0], 0 * one, one)
        (tensor([[0.3808]]), tensor([[1.]]))
    """
    return _lltm_cell(input, weights, bias, h, c)


@torch.fx.wrap
def lltm(
    input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs :func:`lltm_cell` over all steps of a sequence, in one call.

    One matrix product before the loop multiplies the inputs of all steps with their weights, and
    one product after it gives the gradient of the weights. On a GPU, the op runs asynchronously.

    Args:
        input: ``[T, B, I]``, floating.
        weights: ``[3H, H + I]``; like all following arguments, it has the dtype and device of
            ``input``.
        bias: ``[3H]``.
        h: ``[B, H]``, the state before the first step.
        c: ``[B, H]``, the cell before the first step.

    Returns:
        The states after each step, ``[T, B, H]``; the last state and the last cell, ``[B, H]``
        each.

    Raises:
        RuntimeError: wrong shape, dtype or device.

    Example:
        >>> weights, bias, zeros = torch.randn(24, 12), torch.zeros(24), torch.zeros(2, 8)
        >>> output, h, c = lltm(torch.randn(10, 2, 4), weights, bias, zeros, zeros)
        >>> output.shape, torch.equal(output[-1], h)
        (torch.Size([10, 2, 8]), True)
    """
    return _lltm(input, weights, bias, h, c)


class _LLTMParameters(Module):
    """The parameters of a step or a sequence, which are interchangeable."""

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.input_features = input_features
        self.state_size = state_size
        self.weights = nn.Parameter(torch.empty(3 * state_size, state_size + input_features))
        self.bias = nn.Parameter(torch.empty(3 * state_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters uniformly from [-1 / sqrt(H), 1 / sqrt(H)]."""
        bound = 1 / math.sqrt(self.state_size) if self.state_size else 0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """Returns the sizes."""
        return f"{self.input_features}, {self.state_size}"


class LLTM(_LLTMParameters):
    """:func:`lltm_cell` with its parameters: ``new_h, new_c = cell(x, (h, c))``.

    Example:
        >>> cell = LLTM(input_features=32, state_size=128)
        >>> h, c = cell(torch.randn(16, 32), (torch.zeros(16, 128), torch.zeros(16, 128)))
        >>> h.shape, c.shape
        (torch.Size([16, 128]), torch.Size([16, 128]))
    """

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Turns ``[B, I]`` and two ``[B, H]`` into two ``[B, H]``; see :func:`lltm_cell`."""
        h, c = state
        return lltm_cell(input, self.weights, self.bias, h, c)


class LLTMSequence(_LLTMParameters):
    """:func:`lltm` with its parameters: ``output, (h, c) = sequence(x, (h, c))``.

    Example:
        >>> sequence = LLTMSequence(input_features=32, state_size=128)
        >>> output, (h, c) = sequence(torch.randn(100, 16, 32))
        >>> output.shape, h.shape
        (torch.Size([100, 16, 128]), torch.Size([16, 128]))
    """

    def forward(
        self, input: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Turns ``[T, B, I]`` into ``[T, B, H]`` and a state of two ``[B, H]``; see :func:`lltm`.

        By default, the initial state is zero.
        """
        if state is None:
            size = (input.size(1), self.state_size)
            state = (input.new_zeros(size), input.new_zeros(size))  # torch.compile needs two
        h, c = state
        output, h, c = lltm(input, self.weights, self.bias, h, c)
        return output, (h, c)
