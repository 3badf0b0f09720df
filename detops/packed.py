"""Layers that pack their weights for the matrix products of detops once, when constructed."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import _C

# From this many input and output channels, tiles cost less than the products that they save.
WINOGRAD_CHANNELS = 16


def supports_packing() -> bool:
    """Returns whether the CPU has vectors that make our convolutions faster than PyTorch's."""
    return _C.cpu_isa() in ("avx2", "avx512")


class PackedConv2d(nn.Module):
    """A convolution fused with the normalisation, addition and ReLU that follow it.

    Args:
        conv: the layer to replace.
        scale: factor per output channel, folded into the weights.
        shift: offset per output channel, added to the bias.
        relu: applies ReLU to every result.
        exact: never uses Winograd's algorithm.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        conv: nn.Conv2d,
        scale: Tensor | None = None,
        shift: Tensor | None = None,
        *,
        relu: bool = False,
        exact: bool = False,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.groups = conv.kernel_size, conv.groups
        self.stride, self.padding, self.dilation = conv.stride, conv.padding, conv.dilation
        self.relu = relu
        weight, bias = conv.weight.detach(), conv.bias
        if scale is not None:
            weight = weight * scale.view(-1, 1, 1, 1)
            bias = None if bias is None else scale * bias
        if shift is not None:
            bias = shift if bias is None else bias + shift
        is_3x3_stride_1 = self.stride == self.dilation == (1, 1) and self.kernel_size == (3, 3)
        has_enough_channels = min(self.in_channels, self.out_channels) >= WINOGRAD_CHANNELS
        self.packed = supports_packing() and self.groups == 1
        if self.packed:
            pack = (
                _C.pack_winograd_weight
                if is_3x3_stride_1 and has_enough_channels and not exact
                else _C.pack_conv2d_weight
            )
            weight = pack(weight)
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor, add: Tensor | None = None, relu: bool = False) -> Tensor:
        """Convolves ``[N, C, H, W]`` to ``[N, O, h, w]``; ``add`` has the size of the result."""
        relu = relu or self.relu
        window: Any = self.stride, self.padding, self.dilation
        x = x.contiguous(memory_format=torch.channels_last)
        if self.packed:
            weights = self.weight, self.bias, add, self.out_channels, self.kernel_size
            return _C.packed_conv2d(x, *weights, *window, relu)  # type: ignore[call-arg]
        stride, padding, dilation = window
        y = F.conv2d(x, self.weight, self.bias, stride, padding, dilation, self.groups)
        y = y if add is None else y.add_(add)
        return F.relu_(y) if relu else y

    def extra_repr(self) -> str:
        """Returns the arguments of the layer, and the algorithm."""
        channels = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        algorithm = "direct"
        if not self.packed:
            algorithm = "PyTorch"
        elif self.weight.size(0) > 1:
            algorithm = "Winograd"
        return f"{channels}, stride={self.stride}, relu={self.relu}, algorithm={algorithm}"


class PackedLinear(nn.Module):
    """A linear layer, optionally followed by ReLU.

    Args:
        linear: the layer to replace.
        map_shape: (channels, height, width) of the feature maps that ``linear`` receives flattened.
            This layer takes the feature maps themselves, without a copy if they are channels_last.
        relu: applies ReLU to every result.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        linear: nn.Linear,
        map_shape: tuple[int, int, int] | None = None,
        *,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.map_shape, self.relu = map_shape, relu
        weight = linear.weight.detach()
        if map_shape is not None:
            weight = weight.unflatten(1, map_shape).permute(0, 2, 3, 1).flatten(1)
        self.packed = supports_packing()
        if self.packed:
            weight = _C.pack_conv2d_weight(weight[:, :, None, None])
        self.register_buffer("weight", weight)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        """Projects ``[N, in_features]``, or the feature maps, to ``[N, out_features]``."""
        x = x.flatten(1) if self.map_shape is None else x.permute(0, 2, 3, 1).flatten(1)
        if not self.packed:
            y = F.linear(x, self.weight, self.bias)
            return F.relu_(y) if self.relu else y
        x = x[:, :, None, None]
        y = _C.packed_conv2d(
            x, self.weight, self.bias, None, self.out_features, (1, 1), relu=self.relu
        )
        return y.flatten(1)

    def extra_repr(self) -> str:
        """Returns the arguments of the layer."""
        return (
            f"{self.in_features}, {self.out_features}, map_shape={self.map_shape}, relu={self.relu}"
        )


class PackedDeconv2d(nn.Module):
    """A transposed convolution with 2x2 kernels and stride 2: four pixels for each, in one product.

    Args:
        deconv: the layer to replace.
        relu: applies ReLU to every result.
    """

    def __init__(self, deconv: nn.ConvTranspose2d, *, relu: bool = False) -> None:
        super().__init__()
        weight, bias = deconv_to_pointwise(deconv.weight.detach(), deconv.bias)
        conv = nn.Conv2d(deconv.in_channels, weight.size(0), 1, bias=bias is not None)
        conv.weight = nn.Parameter(weight, False)
        if bias is not None:
            conv.bias = nn.Parameter(bias.detach(), False)
        self.conv = PackedConv2d(conv, relu=relu)

    def forward(self, x: Tensor) -> Tensor:
        """Enlarges ``[N, C, H, W]`` to ``[N, O, 2 H, 2 W]``."""
        return width_to_space(depth_to_width(self.conv(x)))


def deconv_to_pointwise(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Turns weights ``[C, O, 2, 2]`` of a transposed convolution into those of a 1x1 convolution.

    With stride 2, each pixel gives four, so the result is ``[4 O, C, 1, 1]``.
    """
    channels, outputs = weight.shape[:2]
    pointwise = weight.permute(2, 3, 1, 0).reshape(4 * outputs, channels, 1, 1)
    return pointwise, None if bias is None else bias.repeat(4)


def join_convolutions(first: nn.Conv2d, second: nn.Conv2d) -> nn.Conv2d | None:
    """Returns one convolution that gives the outputs of two with the same input, or None."""
    if not (packable(first) and packable(second)):
        return None
    names = ("in_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    settings: list[dict[str, Any]]
    settings = [{name: getattr(layer, name) for name in names} for layer in (first, second)]
    biases = [layer.bias for layer in (first, second) if layer.bias is not None]
    if settings[0] != settings[1] or first.groups != 1 or len(biases) == 1:
        return None
    out_channels = first.out_channels + second.out_channels
    merged = nn.Conv2d(**settings[0], out_channels=out_channels, bias=bool(biases), device="meta")
    merged.weight = nn.Parameter(torch.cat((first.weight, second.weight)))
    merged.bias = nn.Parameter(torch.cat(biases)) if biases else None
    return merged


def depth_to_width(x: Tensor) -> Tensor:
    """Moves the four pixels of :func:`deconv_to_pointwise` into the width.

    Maps ``[N, 4 O, H, W]`` to ``[N, O, H, 4 W]``.

    The result is a view if ``x`` is channels_last. Pixelwise operations can be applied to it before
    :func:`width_to_space` copies the pixels.
    """
    n, outputs, height, width = x.size(0), x.size(1) // 4, x.size(2), x.size(3)
    return x.permute(0, 2, 3, 1).reshape(n, height, 4 * width, outputs).permute(0, 3, 1, 2)


def width_to_space(x: Tensor) -> Tensor:
    """Arranges four pixels of a row in a square: ``[N, C, H, 4 W]`` to ``[N, C, 2 H, 2 W]``."""
    n, channels, height, width = x.size(0), x.size(1), x.size(2), x.size(3) // 4
    rows = x.permute(0, 2, 3, 1).reshape(n, height, width, 2, 2, channels)
    y = rows.transpose(2, 3).reshape(n, 2 * height, 2 * width, channels)
    return y.permute(0, 3, 1, 2)


def has_hooks(module: nn.Module) -> bool:
    """Returns whether a module has hooks, and so must be called unchanged."""
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def packable(layer: Any) -> bool:
    """Returns whether a layer is of a plain type that can be packed, and has no hooks."""
    if has_hooks(layer) or layer.weight.dtype != torch.float32 or layer.weight.device.type != "cpu":
        return False
    if type(layer) is nn.Linear:
        return True
    is_zero_padded = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    if type(layer) is nn.ConvTranspose2d:
        doubles_size = layer.kernel_size == layer.stride == (2, 2) and layer.dilation == (1, 1)
        return (
            is_zero_padded
            and doubles_size
            and layer.groups == 1
            and layer.padding == (0, 0) == (layer.output_padding)
        )
    return type(layer) is nn.Conv2d and is_zero_padded
