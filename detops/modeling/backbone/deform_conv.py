"""A deformable convolution with the convolution that tells it where to sample."""

from torch import Tensor, nn

from ...ops import DeformConv2d


class DeformConv(nn.Module):
    """3x3, in the place of a plain convolution without bias.

    "Deformable Convolutional Networks" (Dai et al., 2017), section 2.1; modulated, "Deformable
    ConvNets v2" (Zhu et al., 2019), section 2.2.

    Args:
        inputs: channels in.
        outputs: channels out.
        stride: pixels between neighbouring positions.
        dilation: pixels between neighbouring kernel points.
        groups: groups of channels that do not mix.
        deformable_groups: groups of input channels, each with offsets of its own.
        modulated: samples are weighted as well.
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
        self.offsets = 2 * 9 * deformable_groups
        planned = self.offsets + (9 * deformable_groups if modulated else 0)
        self.modulated = modulated
        self.offset = nn.Conv2d(inputs, planned, 3, stride, dilation, dilation)
        self.conv = DeformConv2d(
            inputs, outputs, 3, stride, dilation, dilation, groups=groups, bias=False
        )
        # It starts as a plain convolution (modulated, as half of one), as both papers have it.
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)  # type: ignore[arg-type]
        nn.init.kaiming_normal_(self.conv.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        plan = self.offset(x)
        if not self.modulated:
            return self.conv(x, plan)
        mask = plan[:, self.offsets :].sigmoid()
        return self.conv(x, plan[:, : self.offsets], mask)
