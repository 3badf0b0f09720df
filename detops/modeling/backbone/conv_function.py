"""A differentiable convolution with the package's own CPU kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from ... import _C
from ...packed import WINOGRAD_CHANNELS, packs

# From this many pixels on, the products cost more than packing the weights on every call.
LEAST_PIXELS = 512
# With fewer weights, few pixels cost less than the call of a Python autograd function.
LEAST_WEIGHTS = 1 << 12
# From this many elements on, memory access costs more than a call.
LARGE = 1 << 18
ONCE = (1, 1)


def in_graph() -> bool:
    """Returns whether a graph is being traced, which must work for any number of pixels."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def transformed() -> bool:
    """Returns whether torch.func or forward mode is active; functions here support neither."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def pixels_of(x: Tensor) -> int:
    """Returns the number of pixels of feature maps ``[N, C, H, W]``."""
    return x.size(0) * x.size(2) * x.size(3)


def suits_pixels(
    conv: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, least: int = LEAST_PIXELS
) -> bool:
    """Returns whether the kernels support a layer and a feature map of ``least`` pixels or more."""
    return (
        x.device.type == "cpu"
        and x.dtype == conv.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and conv.groups == 1
        and pixels_of(x) >= least
        and not transformed()
        and packs()
    )


def suits_winograd(conv: nn.Conv2d, x: Tensor, least: int = LEAST_PIXELS) -> bool:
    """Returns whether Winograd's tiles cost less than the products that they save."""
    padding: Any = conv.padding
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.dilation == ONCE
        and max(padding) <= 2
        and min(conv.in_channels, conv.out_channels) >= WINOGRAD_CHANNELS
        and suits_pixels(conv, x, least)
    )


def suits_function(conv: nn.Conv2d, x: Tensor, add: Tensor | None) -> bool:
    """Returns whether :class:`Conv2dFunction` supports a convolution and is faster than PyTorch."""
    if add is not None and add.dtype != x.dtype:
        return False
    if conv.kernel_size == conv.stride == ONCE and conv.padding == (0, 0):
        return suits_pixels(conv, x, LEAST_PIXELS if conv.weight.numel() < LEAST_WEIGHTS else 1)
    return suits_winograd(conv, x)


@contextmanager
def kept_memory() -> Iterator[None]:
    """Allocates large results in the arena, whose memory the next step reuses."""
    before = _C.use_arena(True)
    try:
        yield
    finally:
        _C.use_arena(before)


class Conv2dFunction(torch.autograd.Function):
    """A 1x1 or 3x3 convolution with stride 1, fused with a bias, a sum and a ReLU."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        add: Tensor | None,
        padding: tuple[int, int],
        relu: bool,
    ) -> Tensor:
        """Maps ``[N, C, H, W]`` and ``[O, C, k, k]`` to ``[N, O, h, w]``."""
        x = x.contiguous(memory_format=torch.channels_last)
        with kept_memory():
            y = _convolve(x, weight, padding, bias, add, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.padding = padding
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes gradients with the same kernels, as products or by Winograd's algorithm."""
        x, weight, y = ctx.saved_tensors
        padding: tuple[int, int] = ctx.padding
        wanted = ctx.needs_input_grad[:2]
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        to_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        to_add = grad if ctx.needs_input_grad[3] else None
        if torch.is_grad_enabled():  # for double backward
            to_x, to_weight, _ = torch.ops.aten.convolution_backward(
                *(grad, x, weight, None, ONCE, padding, ONCE, False, (0, 0), 1, [*wanted, False])
            )
        else:
            grad = grad.contiguous(memory_format=torch.channels_last)
            with kept_memory():
                to_x = _backward_input(grad, weight, padding) if wanted[0] else None
                to_weight = _backward_weight(grad, x, weight, padding) if wanted[1] else None
        return to_x, to_weight, to_bias, to_add, None, None


class FlattenFunction(torch.autograd.Function):
    """``x.flatten(1)`` of large channels_last feature maps, with a channels_last gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, C H W]``."""
        ctx.sizes = x.shape[1:]
        with kept_memory():
            y = _C.batch_transpose(x.permute(0, 2, 3, 1).flatten(1, 2))
        return torch.ops.aten._unsafe_view(y, (len(x), -1))  # callers may write to it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Transposes the gradient back."""
        if torch.is_grad_enabled():  # for double backward
            return grad.unflatten(1, ctx.sizes)
        channels, *map_size = ctx.sizes
        with kept_memory():
            rows = _C.batch_transpose(grad.reshape(len(grad), channels, -1))
        return rows.unflatten(1, map_size).permute(0, 3, 1, 2)


def flatten(x: Tensor) -> Tensor:
    """Computes ``x.flatten(1)``, in half the time for large channels_last feature maps."""
    if (
        x.device.type == "cpu"
        and x.is_floating_point()
        and not (in_graph() or transformed())
        and x.numel() >= LARGE
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=torch.channels_last)
    ):
        flat: Tensor = FlattenFunction.apply(x)
        return flat
    return x.flatten(1)


def _convolve(
    x: Tensor,
    weight: Tensor,
    padding: tuple[int, int],
    bias: Tensor | None = None,
    add: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    kernel = weight.shape[2:]
    if kernel == ONCE and pixels_of(x) < LEAST_PIXELS:
        return _few_pixels(x, weight, bias, add, relu)
    pack = _C.pack_conv2d_weight if kernel == ONCE else _C.pack_winograd_weight
    return _C.packed_conv2d(
        x, pack(weight), bias, add, weight.size(0), kernel, ONCE, padding, ONCE, relu
    )


def _few_pixels(
    x: Tensor, weight: Tensor, bias: Tensor | None, add: Tensor | None, relu: bool
) -> Tensor:
    # Not a view of the sums: callers may write to the result.
    size = x.size(0), weight.size(0), x.size(2), x.size(3)
    y = torch.empty(size, dtype=x.dtype, memory_format=torch.channels_last)
    rows, sums = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (x, y))
    weights = weight.flatten(1).t()
    if bias is None:
        torch.mm(rows, weights, out=sums)
    else:
        torch.addmm(bias, rows, weights, out=sums)
    if add is not None:
        y += add
    return y.relu_() if relu else y


def _backward_input(grad: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    reach = weight.size(2) - 1
    turned = weight.flip(2, 3) if reach else weight
    around = reach - padding[0], reach - padding[1]
    return _convolve(grad, turned.transpose(0, 1), around)


def _backward_weight(grad: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    if weight.size(2) > 1:
        return _C.winograd_conv2d_backward_weight(grad, x, padding)
    rows, pixels = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (grad, x))
    return (rows.t() @ pixels)[:, :, None, None]
