"""Feature extractors of the box head."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ....packed import PackedLinear
from ...backbone.conv_function import flatten
from ...backbone.norm import Norm
from ...poolers import Pooler


def _linear(inputs: int, outputs: int, norm: Norm | None = None) -> nn.Module:
    """Builds a linear layer, with a bias or followed by ``norm``."""
    layer = nn.Linear(inputs, outputs, bias=norm is None)
    nn.init.kaiming_uniform_(layer.weight, a=1)
    if norm is not None:
        return nn.Sequential(layer, norm(outputs))
    nn.init.zeros_(layer.bias)
    return layer


class ResNet50Conv5ROIFeatureExtractor(nn.Module):
    """Pooling and the body's last stage: "Deep Residual Learning" (He et al., 2015), appendix A.

    Args:
        pooler: maps levels and boxes to feature maps.
        head: the last stage.
        stride: stride of the last stage.
        out_channels: output channels of the last stage.
    """

    def __init__(self, *, pooler: Pooler, head: nn.Module, stride: int, out_channels: int) -> None:
        super().__init__()
        self.pooler = pooler
        self.head = head
        self.out_channels = out_channels
        self.resolution = -(-pooler.output_size // stride)

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Maps levels and boxes ``[L, 4]`` to ``[K, out_channels, resolution, resolution]``."""
        return self.head(self.pooler(features, boxes))


class FPN2MLPFeatureExtractor(nn.Module):
    """Pooling and two fully connected layers: "Feature Pyramid Networks", section 4.2.

    Args:
        in_channels: channels of the levels.
        pooler: maps levels and boxes to feature maps.
        hidden_features: outputs of both layers.
        norm: normalisation after each layer, instead of a bias.
    """

    def __init__(
        self, *, in_channels: int, pooler: Pooler, hidden_features: int, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.pooler = pooler
        self.fc6 = _linear(in_channels * pooler.output_size**2, hidden_features, norm)
        self.fc7 = _linear(hidden_features, hidden_features, norm)
        self.out_channels = hidden_features

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Maps levels and boxes, per image ``[L, 4]``, to ``[K, hidden_features]``."""
        x = self.pooler(features, boxes)
        x = self.fc6(x if isinstance(self.fc6, PackedLinear) else flatten(x))
        return F.relu_(self.fc7(F.relu_(x)))


class FPNXconv1fcFeatureExtractor(nn.Module):
    """Pooling, 3x3 convolutions, one fully connected layer: "Group Normalization", section 4.2.

    Args:
        in_channels: channels of the levels.
        pooler: maps levels and boxes to feature maps.
        conv_channels: output channels of every convolution.
        num_convs: number of convolutions.
        hidden_features: outputs of the fully connected layer.
        dilation: dilation of every convolution.
        norm: normalisation after each convolution, instead of a bias.
    """

    def __init__(
        self,
        *,
        in_channels: int,
        pooler: Pooler,
        conv_channels: int,
        num_convs: int,
        hidden_features: int,
        dilation: int = 1,
        norm: Norm | None = None,
    ) -> None:
        super().__init__()
        self.pooler = pooler
        layers: list[nn.Module] = []
        for _ in range(num_convs):
            conv = nn.Conv2d(
                in_channels, conv_channels, 3, 1, dilation, dilation, bias=norm is None
            )
            nn.init.normal_(conv.weight, std=0.01)
            layers.append(conv)
            if norm is not None:
                layers.append(norm(conv_channels))
            elif conv.bias is not None:
                nn.init.zeros_(conv.bias)
            layers.append(nn.ReLU(inplace=True))
            in_channels = conv_channels
        self.xconvs = nn.Sequential(*layers)
        self.fc6 = _linear(in_channels * pooler.output_size**2, hidden_features)
        self.out_channels = hidden_features

    def forward(self, features: Sequence[Tensor], boxes: list[Tensor]) -> Tensor:
        """Maps levels and boxes, per image ``[L, 4]``, to ``[K, hidden_features]``."""
        x = self.xconvs(self.pooler(features, boxes))
        return F.relu_(self.fc6(flatten(x)))
