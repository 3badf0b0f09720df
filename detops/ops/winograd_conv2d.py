"""Convolution by Winograd's algorithm."""

from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.nn import functional as F

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import Function, Pair, as_pair, fold, one_by_one, unfold


class WinogradConv2dFunction(Function):
    """Autograd function, differentiable in all arguments any number of times."""

    @staticmethod
    def forward(
        input: Tensor, weight: Tensor, bias: Tensor | None, padding: tuple[int, int]
    ) -> Tensor:
        """See :func:`winograd_conv2d`."""
        return _C.winograd_conv2d_forward(input, weight, bias, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        *tensors, ctx.padding = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes the gradients by the same algorithm."""
        input, weight, bias = ctx.saved_tensors
        grad_input, grad_weight, grad_bias = None, None, None
        if ctx.needs_input_grad[0]:
            grad_input = _grad_input(grad, weight, ctx.padding)
        if ctx.needs_input_grad[1]:
            if input.device.type == "cpu":
                grad_weight = WinogradWeightFunction.run(grad, input, ctx.padding)
            else:
                dtype = torch.promote_types(input.dtype, weight.dtype)
                grad_weight = torch.ops.aten.convolution_backward(
                    *(grad.to(dtype), input.to(dtype), weight.to(dtype), None),
                    *([1, 1], list(ctx.padding), [1, 1], False, [0, 0], 1, [False, True, False]),
                )[1]
            grad_weight = grad_weight.to(weight.dtype)
        if ctx.needs_input_grad[2]:
            grad_bias = grad.sum((0, 2, 3), dtype=torch.promote_types(grad.dtype, bias.dtype))
            grad_bias = grad_bias.to(bias.dtype)
        return grad_input, grad_weight, grad_bias, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        padding: tuple[int, int],
    ) -> tuple[Tensor, int]:
        """Makes one call over the folded images, or one per set of weights."""
        batch = info.batch_size
        if in_dims[1] is None and in_dims[2] is None:
            images = fold(input, in_dims[0], batch)
            return unfold(WinogradConv2dFunction.run(images, weight, bias, padding), batch), 0
        args = input, weight, bias, padding
        return one_by_one(WinogradConv2dFunction.run, in_dims, batch, *args)


class WinogradWeightFunction(Function):
    """Autograd function of the gradient of the weights. Its derivative is two convolutions."""

    @staticmethod
    def forward(grad: Tensor, input: Tensor, padding: tuple[int, int]) -> Tensor:
        """``[N, O, h, w]`` and ``[N, C, H, W]`` to ``[O, C, 3, 3]``."""
        return _C.winograd_conv2d_backward_weight(grad, input, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the arguments."""
        *tensors, ctx.padding = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor | None, ...]:
        """Convolves with the incoming gradient, which has the shape of weights."""
        grad, input = ctx.saved_tensors
        grad_grad, grad_input = None, None
        if ctx.needs_input_grad[0]:
            grad_grad = WinogradConv2dFunction.run(input, weight, None, ctx.padding)
        if ctx.needs_input_grad[1]:
            grad_input = _grad_input(grad, weight, ctx.padding)
        return grad_grad, grad_input, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, grad: Tensor, input: Tensor, padding: tuple[int, int]
    ) -> tuple[Tensor, int]:
        """Makes one call per batch entry."""
        args = grad, input, padding
        return one_by_one(WinogradWeightFunction.run, in_dims, info.batch_size, *args)


def _grad_input(grad: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    flipped = weight.flip(2, 3).transpose(0, 1)
    full_padding = 2 - padding[0], 2 - padding[1]
    output: Tensor = WinogradConv2dFunction.run(grad, flipped, None, full_padding)
    return output


_winograd_conv2d = derivative("winograd_conv2d", WinogradConv2dFunction.run)


@torch.fx.wrap
def winograd_conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    padding: Pair = 1,
) -> Tensor:
    """Convolves with 3x3 kernels and stride 1, in a quarter of the multiplications.

    The algorithm is F(4x4, 3x3) of "Fast Algorithms for Convolutional Neural Networks" (Lavin and
    Gray, 2016), section 4.1, at the points 0, +-3/4, +-3/2 and infinity. On the CPU it pays off
    from about 32 channels, and is fastest on channels_last feature maps. On a GPU the op is
    PyTorch's convolution, whose precision and determinism depend on ``torch.backends.cudnn``.

    In float32, the error is about five times that of a convolution that adds one product after
    another: for sums around 1, 1e-6 on average and 2e-5 at most. If a tile of 6x6 pixels contains
    an infinity or a NaN, all of its 4x4 results are NaN. Sums use at least float32. Weight and bias
    may have other dtypes than ``input``. An exported graph contains a plain convolution instead.

    Args:
        input: ``[N, C, H, W]``.
        weight: ``[O, C, 3, 3]``.
        bias: ``[O]``.
        padding: zeros around the input, 0 to 2, one number or (vertical, horizontal).

    Returns:
        ``[N, O, H + 2 * padding - 2, W + 2 * padding - 2]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; a kernel that does not fit.

    Example:
        >>> winograd_conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 3, 3)).round(decimals=3)
        tensor([[[[4., 6., 4.],
                  [6., 9., 6.],
                  [4., 6., 4.]]]])
    """
    padding_2d = as_pair(padding)
    if not torch.jit.is_scripting():  # noqa: SIM102, TorchScript looks no further
        if torch.compiler.is_exporting():
            return F.conv2d(input, weight, bias, padding=padding_2d)
    return _winograd_conv2d(input, weight, bias, padding_2d)


class WinogradConv2d(Module, nn.Conv2d):
    """A convolution with 3x3 kernels and stride 1; see :func:`winograd_conv2d`.

    Example:
        >>> WinogradConv2d(16, 32)(torch.randn(1, 16, 20, 30)).shape
        torch.Size([1, 32, 20, 30])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        padding: int | tuple[int, int] = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, 3, 1, as_pair(padding), bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        """Turns ``[N, C, H, W]`` into ``[N, O, H + 2 * padding - 2, W + 2 * padding - 2]``."""
        padding_2d = self.padding[0], self.padding[1]
        return winograd_conv2d(input, self.weight, self.bias, padding_2d)  # type: ignore[arg-type]
