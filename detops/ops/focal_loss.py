"""Sigmoid focal loss."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import _C
from ..registration import CONTRACTS, composition, derivative, kernel
from ._shared import Function, front, raw


def _grad_targets(
    grad: Tensor, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
) -> Tensor:
    dtype = torch.promote_types(torch.promote_types(inputs.dtype, targets.dtype), torch.float32)
    x, t = inputs.to(dtype), targets.to(dtype)
    p, q = x.sigmoid(), (-x).sigmoid()
    cross = torch.where(x > 0, x * (1 - t), -x * t) + F.softplus(-x.abs())
    miss = p * (1 - t) + q * t
    weight, slope = (alpha * t + (1 - alpha) * (1 - t), 2 * alpha - 1) if alpha >= 0 else (1, 0)
    result = (slope * cross - weight * x) * miss**gamma
    if gamma != 0:
        result = result + weight * cross * gamma * miss ** (gamma - 1) * (q - p)
    return (grad * result).to(targets.dtype)


_kernel = torch.ops.detops.sigmoid_focal_loss_forward.default._op
_sum_kernel = kernel("sigmoid_focal_loss_sum")


class SigmoidFocalLossFunction(Function):
    """Autograd function, differentiable once. It keeps only its arguments."""

    @staticmethod
    def forward(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
        """See :func:`sigmoid_focal_loss`."""
        return _kernel(inputs, targets, alpha, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        logits, targets, ctx.alpha, ctx.gamma = inputs
        ctx.save_for_backward(logits, targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Computes the gradients from the arguments, in another pass."""
        inputs, targets = ctx.saved_tensors
        grad = grad.expand_as(inputs)
        grad_inputs = raw(
            _C.sigmoid_focal_loss_backward, grad, inputs, targets, ctx.alpha, ctx.gamma
        )
        grad_targets = None
        if ctx.needs_input_grad[1]:
            grad_targets = _grad_targets(grad, inputs, targets, ctx.alpha, ctx.gamma)
        return grad_inputs, grad_targets, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
    ) -> tuple[Tensor, int]:
        """Computes all elements in one call."""
        size = info.batch_size
        x, t = front(inputs, in_dims[0], size), front(targets, in_dims[1], size)
        return SigmoidFocalLossFunction.run(x, t, alpha, gamma), 0


class SigmoidFocalLossSumFunction(SigmoidFocalLossFunction):
    """Autograd function of the sum of the losses."""

    @staticmethod
    def forward(inputs: Tensor, targets: Tensor, alpha: float, gamma: float) -> Tensor:
        """See :func:`sigmoid_focal_loss`."""
        return _sum_kernel(inputs, targets, alpha, gamma)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, inputs: Tensor, targets: Tensor, alpha: float, gamma: float
    ) -> tuple[Tensor, int]:
        """Computes all elements in one call, then a sum per batch entry."""
        rule = SigmoidFocalLossFunction.vmap
        loss, _ = rule(info, in_dims, inputs, targets, alpha, gamma)
        sum_dtype = torch.promote_types(loss.dtype, torch.float32)
        return loss.flatten(1).sum(1, dtype=sum_dtype), 0


_elements = derivative("sigmoid_focal_loss_elements", SigmoidFocalLossFunction.run, raw=_kernel)
_sum = derivative("sigmoid_focal_loss_sum", SigmoidFocalLossSumFunction.run)


def _loss(inputs: Tensor, targets: Tensor, alpha: float, gamma: float, reduction: str) -> Tensor:
    if not 0 <= alpha <= 1 and alpha != -1:
        raise ValueError(
            f"detops.sigmoid_focal_loss: alpha must be in [0, 1], or -1 for no weights, got {alpha}"
        )
    CONTRACTS["sigmoid_focal_loss"].check_keyword("reduction", reduction)
    if reduction == "none":
        return _elements(inputs, targets, alpha, gamma)
    total = _sum(inputs, targets, alpha, gamma)
    if reduction == "mean":
        # Keep a dimension: vmap over an empty batch cannot divide scalars.
        total = (total.view(1) / inputs.numel()).view(())
    if not inputs.is_meta and torch.is_autocast_enabled(inputs.device.type):
        return total
    return total.to(torch.promote_types(inputs.dtype, targets.dtype))


_sigmoid_focal_loss = composition("sigmoid_focal_loss", _loss)


def sigmoid_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2,
    reduction: str = "none",
) -> Tensor:
    """Computes a binary cross entropy that weights well-predicted elements less.

    It is defined in "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5:
    ``alpha_t (1 - p_t)^gamma`` times the cross entropy, where ``p_t`` is the predicted probability
    of the target. It is finite for all finite inputs. Sums have a fixed order and use at least
    float32. Differentiable once, also in ``targets``.

    Args:
        inputs: logits, of any shape.
        targets: of the same shape, 1 for positive and 0 for negative elements, or in between.
        alpha: weight of the positive targets in [0, 1]; the negative ones have 1 - alpha. -1 for no
            weights.
        gamma: exponent; 0 is plain cross entropy.
        reduction: ``none``, ``mean`` or ``sum``.

    Returns:
        The loss of each element, or a scalar, in the wider of the two dtypes; under autocast in
        float32.

    Raises:
        ValueError: ``alpha`` out of range, or an unknown ``reduction``.
        RuntimeError: wrong shape, dtype or device.

    Example:
        >>> sigmoid_focal_loss(torch.tensor([3.0, -3.0, 0.0]), torch.tensor([1.0, 1.0, 0.0]))
        tensor([2.7321e-05, 6.9157e-01, 1.2997e-01])
    """
    return _sigmoid_focal_loss(inputs, targets, alpha, gamma, reduction)
