"""What our own detectors have of their own."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ..modeling.backbone.conv import conv2d
from ..modeling.roi_heads.box.feature_extractor import FPN2MLPFeatureExtractor
from ..modeling.rpn import RPN, RPNHead
from ..packed import PackedConv2d, PackedLinear, heard, joined, packable
from .rules import Packer


class ProposalHead(nn.Module):
    """A proposal head, for inference, with one convolution for both of its results.

    Args:
        head: whose last convolutions are packed together.
    """

    def __init__(self, head: RPNHead) -> None:
        super().__init__()
        self.conv = head.conv
        self.num_anchors = head.cls_logits.out_channels
        self.both = PackedConv2d(joined(head.cls_logits, head.bbox_pred))

    def forward(self, features: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """See :class:`detops.modeling.rpn.RPNHead`."""
        logits, deltas = [], []
        for x in features:
            both = self.both(conv2d(self.conv, x, relu=True)).permute(0, 2, 3, 1)
            logits.append(both[..., : self.num_anchors].flatten(1))
            deltas.append(both[..., self.num_anchors :].reshape(x.size(0), -1, 4))
        return logits, deltas


def pack(model: Any, exact: bool) -> None:
    """Packs the layers of a detector."""
    for module in model.modules():
        if isinstance(module, FPN2MLPFeatureExtractor) and type(module.fc6) is nn.Linear:
            if packable(module.fc6):
                side = module.pooler.output_size
                maps = module.fc6.in_features // side**2, side, side
                module.fc6 = PackedLinear(module.fc6, maps)
        if isinstance(module, RPN) and type(module.head) is RPNHead and not heard(module.head):
            if packable(module.head.cls_logits) and packable(module.head.bbox_pred):
                module.head = ProposalHead(module.head)
    Packer(exact).walk(model)
