"""Feature pyramids."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from .conv import conv2d
from .norm import Norm


def _conv(inputs: int, outputs: int, kernel: int, norm: Norm | None, relu: bool) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=norm is None)
    nn.init.kaiming_uniform_(conv.weight, a=1)
    if conv.bias is not None:
        nn.init.zeros_(conv.bias)
    layers: list[nn.Module] = [conv]
    if norm is not None:
        layers.append(norm(outputs))
    if relu:
        layers.append(nn.ReLU(inplace=True))
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


def add_enlarged(finer: Tensor, coarser: Tensor) -> Tensor:
    """Adds to a map, in its memory, one of half its size: each pixel to four."""
    height, width = coarser.shape[-2:]
    if finer.shape[-2:] == (2 * height, 2 * width):
        # Without the enlarged map, which is as large as the finer one.
        fourfold = finer.unflatten(3, (width, 2)).unflatten(2, (height, 2))
        fourfold.add_(coarser[:, :, :, None, :, None])
        return finer
    # By size, not by factor 2: odd maps are rounded up on the way down.
    return finer.add_(F.interpolate(coarser, size=finer.shape[-2:]))


class FPN(nn.Module):
    """The pyramid of "Feature Pyramid Networks" (Lin et al., 2017), section 3.

    Args:
        in_channels: of the maps, finest first.
        out_channels: of every level.
        extra_level: append the last level at half its resolution.
        norm: normalisation behind each convolution, in place of a bias.
        relu: a rectifier behind each convolution.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: int,
        *,
        extra_level: bool = True,
        norm: Norm | None = None,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.inner, self.layers = [], []
        for i, channels in enumerate(in_channels, start=1):
            self.add_module(f"fpn_inner{i}", _conv(channels, out_channels, 1, norm, relu))
            self.add_module(f"fpn_layer{i}", _conv(out_channels, out_channels, 3, norm, relu))
            self.inner.append(f"fpn_inner{i}")
            self.layers.append(f"fpn_layer{i}")
        self.extra_level = extra_level
        self.relu = relu
        self.out_channels = out_channels
        self.levels = len(self.inner) + int(extra_level)

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
        if self.extra_level:
            levels.append(F.max_pool2d(levels[-1], 1, 2))
        return levels
