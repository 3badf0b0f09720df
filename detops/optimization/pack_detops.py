"""Packing of detops' own detectors."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..modeling.backbone.conv import conv2d
from ..modeling.roi_heads.box.feature_extractor import FPN2MLPFeatureExtractor
from ..modeling.rpn import RPN, RPNHead
from ..modeling.rpn.anchor_generator import per_anchor
from ..packed import PackedLinear, packable
from .rules import Packer, ProposalHead


class DetopsProposalHead(ProposalHead):
    """A proposal head with the results of :class:`detops.modeling.rpn.RPNHead`."""

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns per level objectness ``[N, H * W * A]`` and deltas ``[N, H * W * A, 4]``."""
        logits, deltas = [], []
        for x in features:
            a, b = self.split(conv2d(self.conv, x, relu=True))
            logits.append(per_anchor(a, 1).squeeze(2))
            deltas.append(per_anchor(b, 4))
        return logits, deltas


def pack(model: Any, exact: bool) -> None:
    """Packs the layers of a detector."""
    for module in model.modules():
        if isinstance(module, FPN2MLPFeatureExtractor) and type(module.fc6) is nn.Linear:
            if packable(module.fc6):
                side = module.pooler.output_size
                map_shape = module.fc6.in_features // side**2, side, side
                module.fc6 = PackedLinear(module.fc6, map_shape)
        if isinstance(module, RPN) and type(module.head) is RPNHead:
            module.head = DetopsProposalHead.replace(module.head)
    Packer(exact).walk(model)
