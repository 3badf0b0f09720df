"""Feature pyramids."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .conv import conv2d
from .conv_function import transformed
from .norm import Norm
from .pool import max_pool


def _conv(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    norm: Norm | None = None,
    relu: bool = False,
) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=norm is None)
    nn.init.kaiming_uniform_(conv.weight, a=1)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    layers: list[nn.Module] = [conv]
    if norm is not None:
        layers.append(norm(outputs))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


class _AddUpsampled(torch.autograd.Function):
    """Adds an upsampled feature map in place.

    The gradient of the smaller map is one pooling, which is faster than a sum of views.
    """

    @staticmethod
    def forward(ctx: Any, finer: Tensor, coarser: Tensor) -> Tensor:
        ctx.mark_dirty(finer)
        return _add_upsampled(finer, coarser)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, F.avg_pool2d(grad, 2) * 4


def _add_upsampled(finer: Tensor, coarser: Tensor) -> Tensor:
    height, width = coarser.shape[-2:]
    # Broadcasting avoids an upsampled copy, which would be as large as the finer map.
    blocks = finer.unflatten(3, (width, 2)).unflatten(2, (height, 2))
    blocks.add_(coarser[:, :, :, None, :, None])
    return finer


def add_upsampled(finer: Tensor, coarser: Tensor) -> Tensor:
    """Adds a feature map of half the size in place, each pixel to four of ``finer``."""
    height, width = coarser.shape[-2:]
    # In a graph, views of six dimensions would lose the memory format of a batch of one.
    if not torch.compiler.is_compiling() and finer.shape[-2:] == (2 * height, 2 * width):
        if torch.is_grad_enabled() and coarser.requires_grad and not transformed():
            result: Tensor = _AddUpsampled.apply(finer, coarser)
            return result
        return _add_upsampled(finer, coarser)
    # By size, not by a factor of 2: downsampling rounds odd sizes up.
    return finer.add_(F.interpolate(coarser, size=finer.shape[-2:]))


class LastLevelMaxPool(nn.Module):
    """Adds one level, every other pixel of the last."""

    levels = 1

    def forward(self, body: Tensor, pyramid: Tensor) -> list[Tensor]:
        """Subsamples the coarsest feature map of the pyramid; that of the body is not used."""
        return [max_pool(pyramid, 1)]


class LastLevelP6P7(nn.Module):
    """Adds two levels by convolutions of stride 2: "Focal Loss" (Lin et al., 2017), section 4.

    Args:
        in_channels: channels of the feature map that P6 is computed from.
        out_channels: channels of both levels.
        use_c5: that feature map is the coarsest one of the body instead of the pyramid.
    """

    levels = 2

    def __init__(self, in_channels: int, out_channels: int, use_c5: bool = True) -> None:
        super().__init__()
        self.p6 = _conv(in_channels, out_channels, 3, stride=2)
        self.p7 = _conv(out_channels, out_channels, 3, stride=2)
        self.use_c5 = use_c5

    def forward(self, body: Tensor, pyramid: Tensor) -> list[Tensor]:
        """Computes P6 and P7 from the coarsest feature map of the body or of the pyramid."""
        p6 = conv2d(self.p6, body if self.use_c5 else pyramid)
        return [p6, conv2d(self.p7, F.relu(p6))]


class FPN(nn.Module):
    """The pyramid of "Feature Pyramid Networks" (Lin et al., 2017), section 3.

    Args:
        in_channels: channels of the feature maps, finest first.
        out_channels: channels of every level.
        first: stage of the body that the first feature map is from; layer names count from it.
        top_blocks: computes coarser levels from the coarsest feature maps of body and pyramid; see
            :class:`LastLevelMaxPool`.
        norm: normalisation after each convolution, instead of a bias.
        relu: apply a ReLU after each convolution.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        *,
        first: int = 1,
        top_blocks: LastLevelMaxPool | LastLevelP6P7 | None = None,
        norm: Norm | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.inner, self.layers = [], []
        for i, channels in enumerate(in_channels, start=first):
            inner = _conv(channels, out_channels, 1, norm=norm, relu=relu)
            layer = _conv(out_channels, out_channels, 3, norm=norm, relu=relu)
            self.add_module(f"fpn_inner{i}", inner)
            self.add_module(f"fpn_layer{i}", layer)
            self.inner.append(f"fpn_inner{i}")
            self.layers.append(f"fpn_layer{i}")
        self.top_blocks = top_blocks
        self.relu = relu
        self.out_channels = out_channels
        self.levels = len(self.inner) + (top_blocks.levels if top_blocks else 0)

    def forward(self, maps: list[Tensor]) -> list[Tensor]:
        """Returns one feature map per level, finest first, all with ``out_channels`` channels."""
        laterals = [
            conv2d(getattr(self, name), x) for name, x in zip(self.inner, maps, strict=True)
        ]
        for i in range(len(laterals) - 1, 0, -1):
            # The backward pass of a ReLU needs its result, which must not be overwritten.
            finer = laterals[i - 1].clone() if self.relu else laterals[i - 1]
            laterals[i - 1] = add_upsampled(finer, laterals[i])
        levels = [
            conv2d(getattr(self, name), x) for name, x in zip(self.layers, laterals, strict=True)
        ]
        if self.top_blocks is not None:
            levels += self.top_blocks(maps[-1], levels[-1])
        return levels
