"""Residual bodies: "Deep Residual Learning" (He et al., 2015) and ResNeXt (Xie et al., 2017)."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .conv import conv2d
from .deform_conv import DeformConv
from .norm import Norm
from .pool import max_pool

# Blocks per stage, by depth.
STAGES = {
    "R-18": (2, 2, 2, 2),
    "R-34": (3, 4, 6, 3),
    "R-50": (3, 4, 6, 3),
    "R-101": (3, 4, 23, 3),
    "R-152": (3, 8, 36, 3),
}


def conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Builds a convolution without bias, to be followed by a normalisation."""
    padding = dilation * (kernel // 2)
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, groups=groups, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


class Stem(nn.Module):
    """A 7x7 convolution and max-pooling, to a quarter of the size."""

    def __init__(self, outputs: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = conv(3, outputs, 7, stride=2)
        self.bn1 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, 3, H, W]`` to ``[N, C, H / 4, W / 4]``."""
        return max_pool(conv2d(self.conv1, x, self.bn1, relu=True), 3)


def shortcut(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Sequential | None:
    """Builds a projection if the block changes the shape; otherwise returns None."""
    if inputs == outputs and stride == 1:
        return None
    return nn.Sequential(conv(inputs, outputs, 1, stride), norm(outputs))


def project(shortcut: nn.Sequential | None, x: Tensor) -> Tensor:
    """Computes the summand of a block's result."""
    return x if shortcut is None else conv2d(shortcut[0], x, shortcut[1])


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.downsample = shortcut(inputs, outputs, stride, norm)
        self.conv1 = conv(inputs, outputs, 3, stride)
        self.bn1 = norm(outputs)
        self.conv2 = conv(outputs, outputs, 3)
        self.bn2 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        identity = project(self.downsample, x)
        y = conv2d(self.conv1, x, self.bn1, relu=True)
        return conv2d(self.conv2, y, self.bn2, relu=True, add=identity, overwrite=identity is not x)


class Bottleneck(nn.Module):
    """A 1x1, a 3x3 and a 1x1 convolution with a shortcut.

    Args:
        inputs: input channels.
        outputs: output channels.
        stride: stride of the block.
        norm: normalisation after each convolution.
        width: channels of the 3x3 convolution.
        groups: groups of the 3x3 convolution, for ResNeXt.
        dilation: dilation of the 3x3 convolution; above 1 it replaces the stride.
        stride_in_1x1: apply the stride in the first convolution instead of the 3x3 one.
        deformable_groups: groups of a deformable 3x3 convolution; 0 for a plain one.
        modulated: the deformable convolution weights its samples.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        stride: int,
        norm: Norm,
        *,
        width: int,
        groups: int = 1,
        dilation: int = 1,
        stride_in_1x1: bool = True,
        deformable_groups: int = 0,
        modulated: bool = False,
    ) -> None:
        super().__init__()
        stride = stride if dilation == 1 else 1
        first, second = (stride, 1) if stride_in_1x1 else (1, stride)
        self.downsample = shortcut(inputs, outputs, stride, norm)
        self.conv1 = conv(inputs, width, 1, first)
        self.bn1 = norm(width)
        self.conv2: nn.Module
        if deformable_groups:
            self.conv2 = DeformConv(
                width,
                width,
                stride=second,
                dilation=dilation,
                groups=groups,
                deformable_groups=deformable_groups,
                modulated=modulated,
            )
        else:
            self.conv2 = conv(width, width, 3, second, dilation, groups)
        self.bn2 = norm(width)
        self.conv3 = conv(width, outputs, 1)
        self.bn3 = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        identity = project(self.downsample, x)
        y = conv2d(self.conv1, x, self.bn1, relu=True)
        y = conv2d(self.conv2, y, self.bn2, relu=True)
        return conv2d(self.conv3, y, self.bn3, relu=True, add=identity, overwrite=identity is not x)


Block = Callable[[int, int, int, int], nn.Module]


def stack(block: Block, inputs: int, outputs: int, depth: int, stage: int) -> nn.Sequential:
    """Builds the blocks of a stage, counted from 0; stages after the first halve the size."""
    blocks = [block(inputs, outputs, 1 if stage == 0 else 2, stage)]
    blocks += [block(outputs, outputs, 1, stage) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


class ResNet(nn.Module):
    """A stem and up to four stages, ``layer1`` to ``layer4``, at strides 4, 8, 16, 32.

    Args:
        stem: maps images to stride 4.
        stem_channels: output channels of the stem.
        block: ``block(inputs, outputs, stride, stage)`` with stages counted from 0.
        depths: blocks per stage.
        stage_channels: output channels of the first stage; each later stage doubles them.
        first_output: first stage, counted from 0, whose feature map is returned.
        freeze_at: number of modules among stem, layer1, layer2... whose weights are frozen.
    """

    def __init__(
        self,
        *,
        stem: nn.Module,
        stem_channels: int,
        block: Block,
        depths: Sequence[int],
        stage_channels: int,
        first_output: int = 0,
        freeze_at: int = 0,
    ) -> None:
        super().__init__()
        self.stem = stem
        self.stages = []
        self.first_output = first_output
        channels = []
        inputs = stem_channels
        for i, depth in enumerate(depths):
            outputs = stage_channels * 2**i
            name = f"layer{i + 1}"
            self.add_module(name, stack(block, inputs, outputs, depth, i))
            self.stages.append(name)
            channels.append(outputs)
            inputs = outputs
        self.out_channels = channels[first_output:]
        for name in ["stem", *self.stages][: max(0, freeze_at)]:
            getattr(self, name).requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Maps ``[N, 3, H, W]`` to a feature map per stage from ``first_output``, finest first."""
        x = self.stem(x)
        maps = []
        for i, name in enumerate(self.stages):
            x = getattr(self, name)(x)
            if i >= self.first_output:
                maps.append(x)
        return maps
