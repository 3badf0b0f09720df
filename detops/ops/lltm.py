"""The LLTM, a recurrent cell without a forget gate: one step, and a whole sequence."""

import math

import torch
from torch import Tensor, nn

from .. import _C

_lltm_cell = _C.lltm_cell.default
_lltm = _C.lltm.default


def lltm_cell(
    input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of the LLTM of the PyTorch tutorial "Custom C++ and CUDA Extensions".

    With ``i, o, g = [h, input] @ weights.T + bias`` in three equal parts::

        c' = c + elu(g) * sigmoid(i)
        h' = tanh(c') * sigmoid(o)

    Differentiable once, in all arguments.

    Args:
        input: ``[B, I]``, floating.
        weights: ``[3H, H + I]``, like all that follow of the dtype and device of ``input``.
        bias: ``[3H]``.
        h: ``[B, H]``, the state before.
        c: ``[B, H]``, the cell before.

    Returns:
        The state and the cell after, ``[B, H]`` each.

    Raises:
        RuntimeError: wrong shape, dtype or device.
    """
    return _lltm_cell(input, weights, bias, h, c)


def lltm(
    input: Tensor, weights: Tensor, bias: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`lltm_cell` over all steps of a sequence, in one call.

    The inputs of all steps meet their weights in one matrix product before the loop, and the
    gradient of the weights is one product after it; on a GPU nothing waits for the host.

    Args:
        input: ``[T, B, I]``, floating.
        weights: ``[3H, H + I]``, like all that follow of the dtype and device of ``input``.
        bias: ``[3H]``.
        h: ``[B, H]``, the state before the first step.
        c: ``[B, H]``, the cell before the first step.

    Returns:
        The states after each step, ``[T, B, H]``; the last state and the last cell, ``[B, H]``.

    Raises:
        RuntimeError: wrong shape, dtype or device.
    """
    return _lltm(input, weights, bias, h, c)


class _LLTMParameters(nn.Module):
    """What a step and a sequence share: their parameters can be exchanged."""

    def __init__(self, input_features: int, state_size: int) -> None:
        super().__init__()
        self.input_features = input_features
        self.state_size = state_size
        self.weights = nn.Parameter(torch.empty(3 * state_size, state_size + input_features))
        self.bias = nn.Parameter(torch.empty(3 * state_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the parameters anew, uniformly from +-1 / sqrt(H)."""
        bound = 1 / math.sqrt(self.state_size) if self.state_size else 0
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        """The sizes."""
        return f"{self.input_features}, {self.state_size}"


class LLTM(_LLTMParameters):
    """:func:`lltm_cell` with its parameters: ``new_h, new_c = cell(x, (h, c))``."""

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """See :func:`lltm_cell`."""
        h, c = state
        return _lltm_cell(input, self.weights, self.bias, h, c)


class LLTMSequence(_LLTMParameters):
    """:func:`lltm` with its parameters: ``output, (h, c) = sequence(x, (h, c))``."""

    def forward(
        self, input: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """See :func:`lltm`; without a state, from zeros."""
        if state is None:
            zeros = input.new_zeros(input.size(1), self.state_size)
            state = (zeros, zeros)
        h, c = state
        output, h, c = _lltm(input, self.weights, self.bias, h, c)
        return output, (h, c)
