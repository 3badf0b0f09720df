"""A differentiable convolution with the package's own CPU kernels."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from ... import _C
from ...packed import WINOGRAD_CHANNELS, supports_packing

# From this many pixels on, the products cost more than packing the weights on every call.
MIN_PIXELS = 512
# With fewer weights, few pixels cost less than the call of a Python autograd function.
MIN_WEIGHTS = 1 << 12
# From this many elements on, memory access costs more than a call.
MIN_LARGE_NUMEL = 1 << 18
UNIT = (1, 1)


def in_graph() -> bool:
    """Returns whether a graph is being traced, which must work for any number of pixels."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def transformed() -> bool:
    """Returns whether torch.func or forward mode is active; functions here support neither."""
    return _are_functorch_transforms_active() or forward_ad._current_level >= 0


def count_pixels(x: Tensor) -> int:
    """Returns the number of pixels of feature maps ``[N, C, H, W]``."""
    return x.size(0) * x.size(2) * x.size(3)


def supports_layer(
    conv: nn.Conv2d | nn.ConvTranspose2d, x: Tensor, min_pixels: int = MIN_PIXELS
) -> bool:
    """Returns whether the kernels support a layer and a feature map of ``min_pixels`` or more."""
    return (
        x.device.type == "cpu"
        and x.dtype == conv.weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and conv.groups == 1
        and count_pixels(x) >= min_pixels
        and not transformed()
        and supports_packing()
    )


def supports_winograd(conv: nn.Conv2d, x: Tensor, min_pixels: int = MIN_PIXELS) -> bool:
    """Returns whether Winograd's tiles cost less than the products that they save."""
    padding: Any = conv.padding
    return (
        conv.kernel_size == (3, 3)
        and conv.stride == conv.dilation == UNIT
        and max(padding) <= 2
        and min(conv.in_channels, conv.out_channels) >= WINOGRAD_CHANNELS
        and supports_layer(conv, x, min_pixels)
    )


def supports_function(conv: nn.Conv2d, x: Tensor, add: Tensor | None) -> bool:
    """Returns whether :class:`Conv2dFunction` supports a convolution and is faster than PyTorch."""
    if add is not None and add.dtype != x.dtype:
        return False
    if conv.kernel_size == conv.stride == UNIT and conv.padding == (0, 0):
        return supports_layer(conv, x, MIN_PIXELS if conv.weight.numel() < MIN_WEIGHTS else 1)
    return supports_winograd(conv, x)


@contextmanager
def in_arena() -> Iterator[None]:
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
        with in_arena():
            y = _convolve(x, weight, padding, bias, add, relu)
        ctx.save_for_backward(x, weight, y if relu else None)
        ctx.padding = padding
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Computes gradients with the same kernels, as products or by Winograd's algorithm."""
        x, weight, y = ctx.saved_tensors
        padding: tuple[int, int] = ctx.padding
        needed = ctx.needs_input_grad[:2]
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
        grad_bias = grad.sum((0, 2, 3)) if ctx.needs_input_grad[2] else None
        grad_add = grad if ctx.needs_input_grad[3] else None
        if torch.is_grad_enabled():  # for double backward
            grad_x, grad_weight, _ = torch.ops.aten.convolution_backward(
                *(grad, x, weight, None, UNIT, padding, UNIT, False, (0, 0), 1, [*needed, False])
            )
        else:
            grad = grad.contiguous(memory_format=torch.channels_last)
            with in_arena():
                grad_x = _backward_input(grad, weight, padding) if needed[0] else None
                grad_weight = _backward_weight(grad, x, weight, padding) if needed[1] else None
        return grad_x, grad_weight, grad_bias, grad_add, None, None


class FlattenFunction(torch.autograd.Function):
    """``x.flatten(1)`` of large channels_last feature maps, with a channels_last gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, C H W]``."""
        ctx.sizes = x.shape[1:]
        with in_arena():
            y = _C.batch_transpose(x.permute(0, 2, 3, 1).flatten(1, 2))
        return torch.ops.aten._unsafe_view(y, (len(x), -1))  # callers may write to it

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Transposes the gradient back."""
        if torch.is_grad_enabled():  # for double backward
            return grad.unflatten(1, ctx.sizes)
        channels, *map_size = ctx.sizes
        with in_arena():
            rows = _C.batch_transpose(grad.reshape(len(grad), channels, -1))
        return rows.unflatten(1, map_size).permute(0, 3, 1, 2)


def flatten(x: Tensor) -> Tensor:
    """Computes ``x.flatten(1)``, in half the time for large channels_last feature maps."""
    if (
        x.device.type == "cpu"
        and x.is_floating_point()
        and not (in_graph() or transformed())
        and x.numel() >= MIN_LARGE_NUMEL
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
    if kernel == UNIT and count_pixels(x) < MIN_PIXELS:
        return _few_pixels(x, weight, bias, add, relu)
    pack = _C.pack_conv2d_weight if kernel == UNIT else _C.pack_winograd_weight
    return _C.packed_conv2d(
        x, pack(weight), bias, add, weight.size(0), kernel, UNIT, padding, UNIT, relu
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
    margin = weight.size(2) - 1
    flipped = weight.flip(2, 3) if margin else weight
    full_padding = margin - padding[0], margin - padding[1]
    return _convolve(grad, flipped.transpose(0, 1), full_padding)


def _backward_weight(grad: Tensor, x: Tensor, weight: Tensor, padding: tuple[int, int]) -> Tensor:
    if weight.size(2) > 1:
        return _C.winograd_conv2d_backward_weight(grad, x, padding)
    rows, pixels = (t.permute(0, 2, 3, 1).flatten(0, 2) for t in (grad, x))
    return (rows.t() @ pixels)[:, :, None, None]
