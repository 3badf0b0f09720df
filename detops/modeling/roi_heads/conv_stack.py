"""Pooling and a stack of 3x3 convolutions, the input of the mask and the keypoint head."""

from collections.abc import Sequence

from torch import Tensor, nn

from ..backbone.conv import conv2d
from ..backbone.norm import Norm
from ..poolers import Pooler


def conv3x3(inputs: int, outputs: int, dilation: int = 1, norm: Norm | None = None) -> nn.Module:
    """Builds a size-preserving convolution, with a bias or followed by ``norm``."""
    bias = norm is None
    conv = nn.Conv2d(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=bias)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    if norm is not None:
        return nn.Sequential(conv, norm(outputs))
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


class ConvStack(nn.Module):
    """RoIAlign, then 3x3 convolutions, each with a ReLU.

    Args:
        in_channels: channels of the levels.
        pooler: maps levels and boxes to feature maps.
        layers: output channels of each convolution; may be empty.
        dilation: dilation of every convolution.
        norm: normalisation after each convolution, instead of a bias.
    """

    prefix: str  # of layer names, followed by a number from 1

    def __init__(
        self,
        *,
        in_channels: int,
        pooler: Pooler,
        layers: Sequence[int],
        dilation: int = 1,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.blocks = [f"{self.prefix}{i}" for i in range(1, len(layers) + 1)]
        for name, channels in zip(self.blocks, layers, strict=True):
            self.add_module(name, conv3x3(in_channels, channels, dilation, norm))
            in_channels = channels
        self.out_channels = in_channels
        self.resolution = pooler.output_size

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Maps levels and boxes ``[L, 4]`` to ``[K, out_channels, resolution, resolution]``."""
        x = self.pooler(features, boxes)
        for name in self.blocks:
            x = conv2d(getattr(self, name), x, relu=True)
        return x
