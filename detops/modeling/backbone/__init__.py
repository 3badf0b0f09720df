"""Bodies and feature pyramids."""

from collections import OrderedDict

from torch import nn

from .fpn import FPN
from .resnet import ResNet

__all__ = ["FPN", "Backbone", "ResNet"]


class Backbone(nn.Sequential):
    """A body with an optional pyramid, from ``[N, 3, H, W]`` to levels, finest first.

    Attributes:
        out_channels: channels of every level.
        levels: number of levels.
    """

    def __init__(self, body: ResNet, fpn: FPN | None = None) -> None:
        if fpn is None:
            super().__init__(OrderedDict(body=body))
            self.out_channels, self.levels = body.out_channels[-1], len(body.out_channels)
        else:
            super().__init__(OrderedDict(body=body, fpn=fpn))
            self.out_channels, self.levels = fpn.out_channels, fpn.levels
