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


class _AddEnlarged(torch.autograd.Function):
    """The gradient of the smaller map is a pooling, which is quicker than a sum of views."""

    @staticmethod
    def forward(ctx: Any, finer: Tensor, coarser: Tensor) -> Tensor:
        ctx.mark_dirty(finer)
        return _add_to_four(finer, coarser)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return grad, F.avg_pool2d(grad, 2) * 4


def _add_to_four(finer: Tensor, coarser: Tensor) -> Tensor:
    height, width = coarser.shape[-2:]
    # Without the enlarged map, which is as large as the finer one.
    fourfold = finer.unflatten(3, (width, 2)).unflatten(2, (height, 2))
    fourfold.add_(coarser[:, :, :, None, :, None])
    return finer


def add_enlarged(finer: Tensor, coarser: Tensor) -> Tensor:
    """Adds to a map, in its memory, one of half its size: each pixel to four."""
    height, width = coarser.shape[-2:]
    # In a graph, views of six dimensions would lose the layout of a batch of one.
    if not torch.compiler.is_compiling() and finer.shape[-2:] == (2 * height, 2 * width):
        if torch.is_grad_enabled() and coarser.requires_grad and not transformed():
            enlarged: Tensor = _AddEnlarged.apply(finer, coarser)
            return enlarged
        return _add_to_four(finer, coarser)
    # By size, not by factor 2: odd maps are rounded up on the way down.
    return finer.add_(F.interpolate(coarser, size=finer.shape[-2:]))


class LastLevelMaxPool(nn.Module):
    """One more level: every other pixel of the last."""

    levels = 1

    def forward(self, body: Tensor, pyramid: Tensor) -> list[Tensor]:
        """From the coarsest map of the body, and of the pyramid, which is what is used."""
        return [max_pool(pyramid, 1)]


class LastLevelP6P7(nn.Module):
    """Two more levels by convolutions of stride 2: "Focal Loss" (Lin et al., 2017), section 4.

    Args:
        in_channels: of the map that P6 is computed from.
        out_channels: of both levels.
        use_c5: that map is the body's coarsest, otherwise the pyramid's.
    """

    levels = 2

    def __init__(self, in_channels: int, out_channels: int, use_c5: bool = True) -> None:
        super().__init__()
        self.p6 = _conv(in_channels, out_channels, 3, stride=2)
        self.p7 = _conv(out_channels, out_channels, 3, stride=2)
        self.use_c5 = use_c5

    def forward(self, body: Tensor, pyramid: Tensor) -> list[Tensor]:
        """From the coarsest map of the body, and of the pyramid."""
        p6 = conv2d(self.p6, body if self.use_c5 else pyramid)
        return [p6, conv2d(self.p7, F.relu(p6))]


class FPN(nn.Module):
    """The pyramid of "Feature Pyramid Networks" (Lin et al., 2017), section 3.

    Args:
        in_channels: of the maps, finest first.
        out_channels: of every level.
        first: stage of the body that the first map is from: what the names count from.
        top_blocks: coarser levels from the coarsest map of body and pyramid; see
            :class:`LastLevelMaxPool`.
        norm: normalisation behind each convolution, in place of a bias.
        relu: a rectifier behind each convolution.
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
        """One map per level, finest first, all with ``out_channels`` channels."""
        laterals = [
            conv2d(getattr(self, name), x) for name, x in zip(self.inner, maps, strict=True)
        ]
        for i in range(len(laterals) - 1, 0, -1):
            # A rectifier needs its result on the way back.
            finer = laterals[i - 1].clone() if self.relu else laterals[i - 1]
            laterals[i - 1] = add_enlarged(finer, laterals[i])
        levels = [
            conv2d(getattr(self, name), x) for name, x in zip(self.layers, laterals, strict=True)
        ]
        if self.top_blocks is not None:
            levels += self.top_blocks(maps[-1], levels[-1])
        return levels
