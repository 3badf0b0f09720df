"""Convolution at selected positions."""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import Function, Pair, as_pair, fold, one_by_one, raw, unfold


class MaskedConv2dFunction(Function):
    """Autograd function, differentiable in features, weight and bias. The mask gets no gradient."""

    @staticmethod
    def forward(
        features: Tensor,
        mask: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Tensor:
        """See :func:`masked_conv2d`."""
        return _C.masked_conv2d_forward(features, mask, weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        *tensors, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Runs the backward pass of a deformable convolution with zero offsets."""
        features, mask, weight, bias = ctx.saved_tensors
        needs_grad = [ctx.needs_input_grad[i] for i in (0, 2, 3)]
        taps = weight.size(2) * weight.size(3)
        offset = features.new_zeros(mask.size(0), 2 * taps, mask.size(1), mask.size(2))
        # PyTorch cannot compare wider unsigned integers. They are above 0 if they are nonzero.
        is_active = mask > 0 if mask.dtype.is_signed else mask.bool()
        grads = raw(
            _C.deform_conv2d_backward,
            torch.where(is_active[:, None], grad, 0),
            *(features, offset, None, weight, bias, ctx.stride, ctx.padding, (1, 1)),
            (needs_grad[0], False, False, needs_grad[1], needs_grad[2]),
        )
        grad_features, grad_weight, grad_bias = (
            grads[i] if is_needed else None
            for i, is_needed in zip((0, 3, 4), needs_grad, strict=True)
        )
        return grad_features, None, grad_weight, grad_bias, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        features: Tensor,
        mask: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images, or one per set of weights."""
        batch = info.batch_size
        if in_dims[2] is None and in_dims[3] is None:
            images = fold(features, in_dims[0], batch), fold(mask, in_dims[1], batch)
            return unfold(
                MaskedConv2dFunction.run(*images, weight, bias, stride, padding), batch
            ), 0
        args = features, mask, weight, bias, stride, padding
        return one_by_one(MaskedConv2dFunction.run, in_dims, batch, *args)


_masked_conv2d = derivative("masked_conv2d", MaskedConv2dFunction.run)


@torch.fx.wrap
def masked_conv2d(
    features: Tensor,
    mask: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
) -> Tensor:
    """Convolves where a mask is above 0, and returns zeros elsewhere.

    "Region Proposal by Guided Anchoring" (Wang et al., 2019), section 3.4, runs its heads with this
    op at inference. Only the positions that are computed take time. Sums use at least float32,
    whatever the dtype of ``features``. The other tensors may have other dtypes. Differentiable
    once; the backward pass takes the time of the whole convolution.

    Args:
        features: ``[N, C, H, W]``.
        mask: ``[N, oh, ow]`` of any real dtype, one element per position of the result.
        weight: ``[O, C, kh, kw]``.
        bias: ``[O]``, added at the positions that are computed.
        stride: one number or (vertical, horizontal).
        padding: zeros around the features, likewise.

    Returns:
        ``[N, O, oh, ow]`` in the dtype of ``features``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; a kernel that does not fit.

    Example:
        >>> ones, mask = torch.ones(1, 1, 3, 3), torch.eye(3)[None]
        >>> masked_conv2d(ones, mask, torch.ones(1, 1, 3, 3), padding=1)
        tensor([[[[4., 0., 0.],
                  [0., 9., 0.],
                  [0., 0., 4.]]]])
    """
    return _masked_conv2d(features, mask, weight, bias, as_pair(stride), as_pair(padding))


class MaskedConv2d(Module, nn.Conv2d):
    """A convolution with an optional mask per call; see :func:`masked_conv2d`.

    Example:
        >>> convolution = MaskedConv2d(16, 32, kernel_size=3, padding=1)
        >>> convolution(torch.randn(1, 16, 20, 30), torch.ones(1, 20, 30)).shape
        torch.Size([1, 32, 20, 30])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)
        self.window = as_pair(stride), as_pair(padding)

    def forward(self, input: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolves ``[N, C, H, W]`` to ``[N, O, oh, ow]``, where ``mask`` > 0 if it is given."""
        if mask is None:
            return super().forward(input)
        return masked_conv2d(input, mask, self.weight, self.bias, *self.window)
