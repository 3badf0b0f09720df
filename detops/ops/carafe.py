"""Content-aware reassembly of features."""

from typing import Any

import torch.fx
from torch import Tensor

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import Function, fold, raw, unfold


class CarafeFunction(Function):
    """Autograd function, differentiable once in features and masks."""

    linear_in = (slice(0, 1), slice(1, 2))

    @staticmethod
    def forward(features: Tensor, masks: Tensor, kernel: int, groups: int, scale: int) -> Tensor:
        """See :func:`carafe`."""
        return _C.carafe_forward(features, masks, kernel, groups, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        ctx.save_for_backward(*inputs[:2])
        ctx.sizes = inputs[2:]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        """Computes the gradients that are needed."""
        needs_grad = ctx.needs_input_grad[:2]
        grads = raw(_C.carafe_backward, grad, *ctx.saved_tensors, *ctx.sizes, *needs_grad)
        grad_features, grad_masks = (
            g if w else None for g, w in zip(grads, needs_grad, strict=True)
        )
        return grad_features, grad_masks, None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        features: Tensor,
        masks: Tensor,
        kernel: int,
        groups: int,
        scale: int,
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images."""
        batch = info.batch_size
        features, masks = fold(features, in_dims[0], batch), fold(masks, in_dims[1], batch)
        return unfold(CarafeFunction.run(features, masks, kernel, groups, scale), batch), 0


_carafe = derivative("carafe", CarafeFunction.run)


@torch.fx.wrap
def carafe(
    features: Tensor, masks: Tensor, kernel_size: int, group_size: int, scale_factor: int
) -> Tensor:
    """Upsamples features: each new pixel is a weighted sum of the pixels around its source.

    See "CARAFE: Content-Aware ReAssembly of FEatures" (Wang et al., 2019), equation 4. Pixel (y, x)
    of the result weights the ``kernel_size ** 2`` features around (y // scale_factor, x //
    scale_factor), row by row, with zeros outside the feature map. Weights and sums use at least
    float32, whatever the dtype of ``features``. Masks may have another dtype. Differentiable once.

    Args:
        features: ``[N, C, H, W]``.
        masks: ``[N, group_size * kernel_size ** 2, scale_factor * H, scale_factor * W]``, the
            weights of each new pixel, one channel group after another.
        kernel_size: pixels per side of the weighted neighbourhood, odd.
        group_size: number of channel groups, each with its own masks. It must divide C.
        scale_factor: new pixels per pixel and side.

    Returns:
        ``[N, C, scale_factor * H, scale_factor * W]`` in the dtype of ``features``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; an even kernel size.

    Example:
        >>> x = torch.tensor([[[[1.0, 2.0]]]])
        >>> carafe(x, torch.ones(1, 1, 2, 4), kernel_size=1, group_size=1, scale_factor=2)
        tensor([[[[1., 1., 2., 2.],
                  [1., 1., 2., 2.]]]])
    """
    return _carafe(features, masks, kernel_size, group_size, scale_factor)


class CARAFE(Module):
    """See :func:`carafe`.

    Example:
        >>> enlarge = CARAFE(kernel_size=5, group_size=1, scale_factor=2)
        >>> kernels = torch.randn(1, 5 * 5, 40, 60).softmax(1)
        >>> enlarge(torch.randn(1, 16, 20, 30), kernels).shape
        torch.Size([1, 16, 40, 60])
    """

    def __init__(self, kernel_size: int, group_size: int, scale_factor: int) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.group_size = group_size
        self.scale_factor = scale_factor

    def forward(self, features: Tensor, masks: Tensor) -> Tensor:
        """Upsamples ``[N, C, H, W]`` with ``[N, G * k * k, s * H, s * W]`` by the factor s."""
        return carafe(features, masks, self.kernel_size, self.group_size, self.scale_factor)

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return (
            f"kernel_size={self.kernel_size}, group_size={self.group_size}, "
            f"scale_factor={self.scale_factor}"
        )
