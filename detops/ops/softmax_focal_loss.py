"""Softmax focal loss over mutually exclusive classes."""

from typing import Any

from torch import Tensor

from .. import _C
from ..registration import composition, derivative
from ._shared import Function, one_by_one, raw, reduced


class SoftmaxFocalLossFunction(Function):
    """Autograd function, differentiable once in the logits and the class weights."""

    @staticmethod
    def forward(
        inputs: Tensor, targets: Tensor, weight: Tensor | None, alpha: float, gamma: float
    ) -> Tensor:
        """See :func:`softmax_focal_loss`."""
        return _C.softmax_focal_loss_forward(inputs, targets, weight, alpha, gamma)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        logits, targets, weight, ctx.alpha, ctx.gamma = inputs
        ctx.save_for_backward(logits, targets, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes the gradients from the arguments, in another pass."""
        inputs, targets, weight = ctx.saved_tensors
        parameters = ctx.alpha, ctx.gamma
        grad_inputs = grad_weight = None
        if ctx.needs_input_grad[0]:
            arguments = inputs, targets, weight, *parameters
            grad_inputs = raw(_C.softmax_focal_loss_backward, grad, *arguments)
        if ctx.needs_input_grad[2]:
            row_grads = grad * raw(
                _C.softmax_focal_loss_forward, inputs, targets, None, *parameters
            )
            # Ignored rows have a loss of 0, so any index works for them.
            index = targets.long().clamp(0, weight.size(0))
            sums = row_grads.new_zeros(weight.size(0) + 1).index_put(
                (index,), row_grads, accumulate=True
            )
            grad_weight = sums[:-1].to(weight.dtype)
        return grad_inputs, None, grad_weight, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        inputs: Tensor,
        targets: Tensor,
        weight: Tensor | None,
        alpha: float,
        gamma: float,
    ) -> tuple[Tensor, int]:
        """Makes one call per batch entry, because each may have its own weights."""
        args = inputs, targets, weight, alpha, gamma
        return one_by_one(SoftmaxFocalLossFunction.run, in_dims, info.batch_size, *args)


_elements = derivative("softmax_focal_loss_elements", SoftmaxFocalLossFunction.run)


def _loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float,
    gamma: float,
    weight: Tensor | None,
    reduction: str,
) -> Tensor:
    loss: Tensor = _elements(inputs, targets, weight, alpha, gamma)
    return reduced("softmax_focal_loss", loss, reduction)


_softmax_focal_loss = composition("softmax_focal_loss", _loss)


def softmax_focal_loss(
    inputs: Tensor,
    targets: Tensor,
    alpha: float = 0.25,
    gamma: float = 2,
    weight: Tensor | None = None,
    reduction: str = "none",
) -> Tensor:
    """Computes a cross entropy over exclusive classes that weights well-predicted rows less.

    It is defined in "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5, here
    over a softmax: ``-alpha weight[t] (1 - p)^gamma log p``, where ``p`` is the predicted
    probability of class ``t``. It is finite for all finite inputs. Differentiable once in
    ``inputs`` and ``weight``.

    Args:
        inputs: logits, ``[N, C]``.
        targets: integer ``[N]``, the class of each row, from 0 to C - 1. A row with any other value
            is ignored: its loss and its gradient are 0.
        alpha: factor of all losses.
        gamma: exponent; 0 is plain cross entropy.
        weight: ``[C]``, factor of each class.
        reduction: ``none``, ``mean`` (over all N rows, including ignored ones; 0 without rows) or
            ``sum``.

    Returns:
        ``[N]``, or a scalar: float64 if the logits are, otherwise float32.

    Raises:
        ValueError: an unknown ``reduction``.
        RuntimeError: wrong shape, dtype or device; an ``alpha`` or ``gamma`` that is not finite.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> softmax_focal_loss(logits, torch.tensor([0, 1, -1]))
        tensor([1.1231e-05, 2.4770e-02, 0.0000e+00])
    """
    return _softmax_focal_loss(inputs, targets, alpha, gamma, weight, reduction)
