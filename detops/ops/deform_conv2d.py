"""Deformable convolution."""

import math
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from .. import _C
from ..module import Module
from ..registration import derivative
from ._shared import Function, Pair, as_pair, raw


class DeformConv2dFunction(Function):
    """Autograd function, differentiable once in every tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        input: Tensor,
        offset: Tensor,
        mask: Tensor | None,
        weight: Tensor,
        bias: Tensor | None,
        window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]],
    ) -> Tensor:
        """See :func:`deform_conv2d`; ``window`` is stride, padding and dilation."""
        return _C.deform_conv2d_forward(input, offset, mask, weight, bias, *window)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        """Keeps the tensors but not the samples, which are many times larger."""
        *tensors, ctx.window = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes the gradients that are needed, of all tensors in one call."""
        needs_grad = list(ctx.needs_input_grad[:5])
        input, offset, mask, weight, bias = ctx.saved_tensors
        stride, padding, dilation = ctx.window
        gradients = raw(
            _C.deform_conv2d_backward,
            *(grad, input, offset, mask, weight, bias, stride, padding, dilation, needs_grad),
        )
        return *(g if w else None for g, w in zip(gradients, needs_grad, strict=True)), None


_deform_conv2d = derivative(
    "deform_conv2d", lambda *args: DeformConv2dFunction.run(*args[:5], tuple(map(tuple, args[5:])))
)


@torch.fx.wrap
def deform_conv2d(
    input: Tensor,
    offset: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = (1, 1),
    padding: Pair = (0, 0),
    dilation: Pair = (1, 1),
    mask: Tensor | None = None,
) -> Tensor:
    """Convolves with kernel taps that move at each position and, with ``mask``, are weighted.

    See "Deformable Convolutional Networks" (Dai et al., 2017), equation 2, and with ``mask``
    "Deformable ConvNets v2" (Zhu et al., 2019), equation 1. Samples are bilinear, and zero outside
    the image. A sample at a NaN or infinite position is 0 and has no gradient. The arithmetic uses
    the dtype of ``input``, but at least float32. The other tensors may have other floating dtypes,
    and are not rounded to that of ``input``. On a GPU, if ``input`` and ``weight`` share a
    half-precision dtype, samples are rounded to it before the product, to use tensor cores.

    Args:
        input: ``[N, C, H, W]``, contiguous or channels_last; the result has the same layout.
        offset: ``[N, 2 * D * kh * kw, oh, ow]`` in pixels, y and then x for each kernel tap, for
            each of D groups of channels.
        weight: ``[O, C / groups, kh, kw]``; the shapes determine the number of groups.
        bias: ``[O]``.
        stride: pixels between neighbouring positions, one number or (vertical, horizontal).
        padding: zeros around the image, likewise.
        dilation: pixels between neighbouring kernel taps, likewise.
        mask: ``[N, D * kh * kw, oh, ow]``, the factor of each sample.

    Returns:
        ``[N, O, oh, ow]`` in the dtype of ``input``.

    Raises:
        RuntimeError: wrong shapes, dtypes or devices; a stride or dilation below 1, a padding below
            0; a kernel that does not fit into the padded image.

    Example:
        >>> columns = torch.arange(6.0).expand(1, 1, 3, 6)
        >>> half = torch.tensor([0.0, 0.5]).view(1, 2, 1, 1).expand(1, 2, 3, 6)  # to the right
        >>> deform_conv2d(columns, half, torch.ones(1, 1, 1, 1))[0, 0, 0]
        tensor([0.5000, 1.5000, 2.5000, 3.5000, 4.5000, 2.5000])
    """
    window = as_pair(stride), as_pair(padding), as_pair(dilation)
    return _deform_conv2d(input, offset, mask, weight, bias, window[0], window[1], window[2])


class DeformConv2d(Module):
    """See :func:`deform_conv2d`.

    Example:
        >>> convolution = DeformConv2d(16, 32, kernel_size=3, padding=1)
        >>> offset = torch.zeros(1, 2 * 3 * 3, 20, 30)
        >>> convolution(torch.randn(1, 16, 20, 30), offset).shape
        torch.Size([1, 32, 20, 30])
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if groups < 1 or channels % groups != 0:
                raise ValueError(
                    f"detops.DeformConv2d: {name} must be divisible by groups ({groups}), "
                    f"got {channels}"
                )
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = as_pair(kernel_size)
        self.stride = as_pair(stride)
        self.padding = as_pair(padding)
        self.dilation = as_pair(dilation)
        self.groups = groups
        size = (out_channels, in_channels // groups, *self.kernel_size)
        self.weight = nn.Parameter(torch.empty(size))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new parameters from the same distribution as a plain convolution."""
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor, offset: Tensor, mask: Tensor | None = None) -> Tensor:
        """Convolves ``[N, C, H, W]`` with offsets and a mask to ``[N, O, oh, ow]``."""
        return deform_conv2d(
            input,
            offset,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            mask,
        )

    def extra_repr(self) -> str:
        """Returns the arguments."""
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, dilation={self.dilation}, "
            f"groups={self.groups}, bias={self.bias is not None}"
        )
