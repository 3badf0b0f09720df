"""A perceptron with one hidden layer."""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from ..module import Module
from ..registration import derivative
from ._shared import Function, raw

_forward = torch.ops.detops.mlp_forward.default
_backward = torch.ops.detops.mlp_backward.default


class MlpFunction(Function):
    """Autograd function of output and hidden units. Differentiable once in all arguments."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        """Runs the kernel."""
        return _forward(*tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keeps the input, both weights and the hidden units."""
        input, hidden_weights, _, output_weights, _ = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(input, output[1], hidden_weights, output_weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Computes all gradients in one call."""
        needs_grad = ctx.needs_input_grad[0]
        grad_input, *others = raw(_backward, grad, *ctx.saved_tensors, needs_grad)
        return grad_input if needs_grad else None, *others


_mlp = derivative("mlp", lambda *tensors: MlpFunction.run(*tensors)[0])


@torch.fx.wrap
def mlp(
    input: Tensor,
    hidden_weights: Tensor,
    hidden_bias: Tensor,
    output_weights: Tensor,
    output_bias: Tensor,
) -> Tensor:
    """Returns ``relu(input @ hidden_weights.T + hidden_bias) @ output_weights.T + output_bias``.

    The op is one kernel if the weights fit the L1 cache, and matrix products otherwise.
    Differentiable once in all arguments; the slope of relu at 0 is 0.

    Args:
        input: ``[B, I]``, floating.
        hidden_weights: ``[H, I]``; like all following arguments, it has the dtype and device of
            ``input``.
        hidden_bias: ``[1, H]``.
        output_weights: ``[O, H]``.
        output_bias: ``[1, O]``.

    Returns:
        ``[B, O]``.

    Raises:
        RuntimeError: wrong shape, dtype or device.

    Example:
        >>> ones = torch.ones(1, 2)
        >>> mlp(torch.tensor([[1.0, 2.0]]), ones, -ones[:, :1], 5 * ones[:, :1], ones[:, :1])
        tensor([[11.]])
    """
    return _mlp(input, hidden_weights, hidden_bias, output_weights, output_bias)


class MLP(Module):
    """:func:`mlp` with its parameters, drawn uniformly from [-0.001, 0.001].

    Example:
        >>> MLP(input_features=5, hidden_features=15, output_features=1)(torch.randn(64, 5)).shape
        torch.Size([64, 1])
    """

    def __init__(
        self, input_features: int = 5, hidden_features: int = 15, output_features: int = 1
    ) -> None:
        super().__init__()
        self.hidden_weights = nn.Parameter(torch.empty(hidden_features, input_features))
        self.hidden_bias = nn.Parameter(torch.empty(1, hidden_features))
        self.output_weights = nn.Parameter(torch.empty(output_features, hidden_features))
        self.output_bias = nn.Parameter(torch.empty(1, output_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters."""
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -0.001, 0.001)

    def forward(self, input: Tensor) -> Tensor:
        """Turns ``[B, I]`` into ``[B, O]``; see :func:`mlp`."""
        return mlp(
            input, self.hidden_weights, self.hidden_bias, self.output_weights, self.output_bias
        )

    def extra_repr(self) -> str:
        """Returns the sizes of the layers."""
        hidden, inputs = self.hidden_weights.shape
        return f"{inputs}, {hidden}, {self.output_weights.size(0)}"
