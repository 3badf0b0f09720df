"""A deformable convolution with the convolution that predicts its offsets."""

from torch import Tensor, nn

from ...ops import DeformConv2d


class DeformConv(nn.Module):
    """A deformable 3x3 convolution that replaces a plain one without bias.

    "Deformable Convolutional Networks" (Dai et al., 2017), section 2.1; if modulated, "Deformable
    ConvNets v2" (Zhu et al., 2019), section 2.2.

    Args:
        inputs: input channels.
        outputs: output channels.
        stride: pixels between neighbouring positions.
        dilation: pixels between neighbouring kernel points.
        groups: number of channel groups that do not mix.
        deformable_groups: number of input channel groups, each with its own offsets.
        modulated: also predict a weight for each sample.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        deformable_groups: int = 1,
        modulated: bool = False,
    ) -> None:
        super().__init__()
        self.offset_channels = 2 * 9 * deformable_groups
        predicted_channels = self.offset_channels + (9 * deformable_groups if modulated else 0)
        self.modulated = modulated
        self.offset = nn.Conv2d(inputs, predicted_channels, 3, stride, dilation, dilation)
        self.conv = DeformConv2d(
            inputs, outputs, 3, stride, dilation, dilation, groups=groups, bias=False
        )
        # Starts as a plain convolution (if modulated, as half of one), as in both papers.
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        predicted = self.offset(x)
        if not self.modulated:
            return self.conv(x, predicted)
        mask = predicted[:, self.offset_channels :].sigmoid()
        return self.conv(x, predicted[:, : self.offset_channels], mask)
