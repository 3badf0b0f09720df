"""What our own detectors have of their own."""

from typing import Any

from torch import nn

from ..modeling.roi_heads.box.feature_extractor import FPN2MLPFeatureExtractor
from ..packed import PackedLinear, packable
from .rules import Packer


def pack(model: Any, exact: bool) -> None:
    """Packs the layers of a detector."""
    for module in model.modules():
        if isinstance(module, FPN2MLPFeatureExtractor) and type(module.fc6) is nn.Linear:
            if packable(module.fc6):
                side = module.pooler.output_size
                maps = module.fc6.in_features // side**2, side, side
                module.fc6 = PackedLinear(module.fc6, maps)
    Packer(exact).walk(model)
