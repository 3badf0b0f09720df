"""What torchvision's detectors have of their own."""

from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.ops import FrozenBatchNorm2d

from ..packed import (
    PackedConv2d,
    PackedDeconv2d,
    PackedLinear,
    heard,
    in_squares,
    packable,
    side_by_side,
)
from .rules import Affine, Packer, affine_of, scaled


class Residual(nn.Module):
    """A block of torchvision's ResNets: packed convolutions, the last with the sum.

    Args:
        block: whose convolutions are packed.
    """

    def __init__(self, block: resnet.BasicBlock | resnet.Bottleneck) -> None:
        super().__init__()
        layers = (getattr(block, f"conv{i}", None) for i in (1, 2, 3))
        self.convs = nn.ModuleList(layer for layer in layers if layer is not None)
        self.downsample = block.downsample

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        identity = x if self.downsample is None else self.downsample(x)
        *convs, last = self.convs
        for conv in convs:
            x = conv(x, relu=True)
        y: Tensor = last(x, identity, relu=True)
        return y


class MaskPredictor(nn.Module):
    """The logits of masks, computed before the pixels of the larger maps are brought into place.

    Args:
        predictor: whose layers are packed.
    """

    def __init__(self, predictor: MaskRCNNPredictor) -> None:
        super().__init__()
        self.conv5_mask: Any = predictor.conv5_mask
        self.mask_fcn_logits = predictor.mask_fcn_logits

    def forward(self, x: Tensor) -> Tensor:
        """``[N, C, M, M]`` to ``[N, classes, 2 M, 2 M]``."""
        return in_squares(self.mask_fcn_logits(side_by_side(self.conv5_mask.conv(x))))


class TorchvisionPacker(Packer):
    """Knows torchvision's normalisation, blocks and chains."""

    def __init__(self, exact: bool) -> None:
        super().__init__(exact, _affine)

    def walk(self, module: nn.Module) -> None:
        """Packs all that is below a module and itself."""
        super().walk(module)
        for name, child in list(module.named_children()):
            if type(child) in (resnet.BasicBlock, resnet.Bottleneck):
                convs = [m for n, m in child.named_children() if n.startswith("conv")]
                if all(isinstance(m, PackedConv2d) for m in convs) and not heard(child):
                    module.add_module(name, Residual(child))  # type: ignore[arg-type]
            if type(child) is MaskRCNNPredictor:
                if isinstance(child.conv5_mask, PackedDeconv2d) and not heard(child):
                    module.add_module(name, MaskPredictor(child))
        if type(module) is IntermediateLayerGetter:
            names: list[str] = []
            returned: Any = module.return_layers
            for name, _ in list(module.named_children()):
                names.append(name)
                if name in returned:
                    self.chain(module, names)
                    names = []
            self.chain(module, names)


def _affine(norm: nn.Module) -> Affine:
    return scaled(norm) if type(norm) is FrozenBatchNorm2d else affine_of(norm)


def pack(model: Any, exact: bool) -> None:
    """Packs the layers of a torchvision detector."""
    heads: Any = getattr(model, "roi_heads", None)
    head: Any = getattr(heads, "box_head", None)
    if type(head) is TwoMLPHead and packable(head.fc6) and packable(head.fc7):
        height, width = heads.box_roi_pool.output_size
        maps = head.fc6.in_features // (height * width), height, width
        heads.box_head = nn.Sequential(
            PackedLinear(head.fc6, maps, relu=True), PackedLinear(head.fc7, relu=True)
        )
    TorchvisionPacker(exact).walk(model)
