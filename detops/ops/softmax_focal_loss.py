"""The focal loss of classes of which one holds."""

from typing import Any

from torch import Tensor

from .. import _C
from ..registration import composition, derivative
from ._shared import Function, one_by_one, raw, reduced


class SoftmaxFocalLossFunction(Function):
    """Differentiable once in the logits and the weights of classes."""

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
        """One pass more, from the same arguments."""
        inputs, targets, weight = ctx.saved_tensors
        rule = ctx.alpha, ctx.gamma
        to_inputs = to_weight = None
        if ctx.needs_input_grad[0]:
            arguments = inputs, targets, weight, *rule
            to_inputs = raw(_C.softmax_focal_loss_backward, grad, *arguments)
        if ctx.needs_input_grad[2]:
            each = grad * raw(_C.softmax_focal_loss_forward, inputs, targets, None, *rule)
            # The loss of a row that does not count is 0, wherever it is added.
            place = targets.long().clamp(0, weight.size(0))
            sums = each.new_zeros(weight.size(0) + 1).index_put((place,), each, accumulate=True)
            to_weight = sums[:-1].to(weight.dtype)
        return to_inputs, None, to_weight, None, None

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
        """One call after the other, as each may have weights of its own."""
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
    """Cross entropy in which what is predicted well counts little, for classes of which one holds.

    "Focal Loss for Dense Object Detection" (Lin et al., 2017), equation 5, over a softmax:
    ``-alpha weight[t] (1 - p)^gamma log p``, where ``p`` is the probability given to the class
    ``t``. Finite for all finite inputs. Differentiable once in ``inputs`` and ``weight``.

    Args:
        inputs: logits, ``[N, C]``.
        targets: integer ``[N]``, the class of each row, from 0 to C - 1; a row of any other number
            is ignored: its loss and its gradient are 0.
        alpha: a factor of all losses.
        gamma: exponent; 0 is plain cross entropy.
        weight: ``[C]``, a factor for each class.
        reduction: ``none``, ``mean`` (over all N rows, ignored ones too; 0 where there are none) or
            ``sum``.

    Returns:
        ``[N]``, or one number: float64 if the logits are, otherwise float32.

    Raises:
        ValueError: an unknown ``reduction``.
        RuntimeError: wrong shape, dtype or device; an ``alpha`` or ``gamma`` that is not finite.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
        >>> softmax_focal_loss(logits, torch.tensor([0, 1, -1]))
        tensor([1.1231e-05, 2.4770e-02, 0.0000e+00])
    """
    return _softmax_focal_loss(inputs, targets, alpha, gamma, weight, reduction)
