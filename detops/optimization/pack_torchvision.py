"""Packing of torchvision's detectors."""

from collections import OrderedDict
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torchvision.models import resnet
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.faster_rcnn import TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNPredictor
from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead
from torchvision.ops import FeaturePyramidNetwork, FrozenBatchNorm2d, MultiScaleRoIAlign

from .. import ops
from ..modeling.backbone.fpn import add_upsampled
from ..ops.multiscale_roi_align import infer_scales
from ..packed import (
    PackedConv2d,
    PackedDeconv2d,
    PackedLinear,
    depth_to_width,
    has_hooks,
    packable,
    width_to_space,
)
from .rules import Affine, Packer, ProposalHead, affine_parameters, scale_and_shift


class Residual(nn.Module):
    """A block of a torchvision ResNet, with packed convolutions and the sum fused into the last.

    Args:
        block: a block with packed convolutions.
    """

    def __init__(self, block: resnet.BasicBlock | resnet.Bottleneck) -> None:
        super().__init__()
        layers = (getattr(block, f"conv{i}", None) for i in (1, 2, 3))
        self.convs = nn.ModuleList(layer for layer in layers if layer is not None)
        self.downsample = block.downsample

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, H, W]`` to ``[N, outputs, H / stride, W / stride]``."""
        identity = x if self.downsample is None else self.downsample(x)
        *convs, last = self.convs
        for conv in convs:
            x = conv(x, relu=True)
        y: Tensor = last(x, identity, relu=True)
        return y


class Pyramid(nn.Module):
    """A feature pyramid that adds each level to the finer one in place.

    Args:
        pyramid: a pyramid with packed convolutions.
    """

    def __init__(self, pyramid: FeaturePyramidNetwork) -> None:
        super().__init__()
        self.inner_blocks, self.layer_blocks = pyramid.inner_blocks, pyramid.layer_blocks
        self.extra_blocks = pyramid.extra_blocks

    def forward(self, x: dict[str, Tensor]) -> dict[str, Tensor]:
        """Maps named feature maps, finest first, to levels with equal numbers of channels."""
        names, maps = list(x), list(x.values())
        inner = [block(y) for block, y in zip(self.inner_blocks, maps, strict=True)]
        for i in range(len(inner) - 1, 0, -1):
            inner[i - 1] = add_upsampled(inner[i - 1], inner[i])
        levels = [block(y) for block, y in zip(self.layer_blocks, inner, strict=True)]
        if self.extra_blocks is not None:
            levels, names = self.extra_blocks(levels, maps, names)
        return OrderedDict(zip(names, levels, strict=True))


class TorchvisionProposalHead(ProposalHead):
    """A proposal head with the results of torchvision's head."""

    def forward(self, x: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Returns per level logits ``[N, A, H, W]`` and deltas ``[N, 4 A, H, W]``."""
        levels = [self.split(self.conv(y)) for y in x]
        return [logits for logits, _ in levels], [deltas for _, deltas in levels]


class Pooler(nn.Module):
    """A pooler for layers that accept any memory format: results have that of the feature maps.

    Args:
        pooler: the pooler to replace. It still pools if levels are not consecutive powers of two.
    """

    def __init__(self, pooler: MultiScaleRoIAlign) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(
        self, x: dict[str, Tensor], boxes: list[Tensor], image_shapes: list[tuple[int, int]]
    ) -> Tensor:
        """Pools boxes; see :class:`detops.MultiScaleRoIAlign`."""
        pooler = self.pooler
        maps = [x[name] for name in pooler.featmap_names if name in x]
        scales = infer_scales(maps, image_shapes)
        if any(finer != 2 * coarser for finer, coarser in pairwise(scales)):
            return pooler(x, boxes, image_shapes)  # type: ignore[no-any-return]
        return ops.multiscale_roi_align(
            maps,
            boxes,
            pooler.output_size,
            scales,
            pooler.sampling_ratio,
            canonical_scale=pooler.canonical_scale,
            canonical_level=pooler.canonical_level,
        )


class MaskPredictor(nn.Module):
    """A mask predictor that computes logits before it rearranges the pixels of the larger maps.

    Args:
        predictor: a predictor with packed layers.
    """

    def __init__(self, predictor: MaskRCNNPredictor) -> None:
        super().__init__()
        self.conv5_mask: Any = predictor.conv5_mask
        self.mask_fcn_logits = predictor.mask_fcn_logits

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[N, C, M, M]`` to ``[N, classes, 2 M, 2 M]``."""
        return width_to_space(self.mask_fcn_logits(depth_to_width(self.conv5_mask.conv(x))))


class TorchvisionPacker(Packer):
    """Packs the normalisations, blocks and chains of torchvision."""

    def __init__(self, exact: bool) -> None:
        super().__init__(exact, _affine_parameters)

    def walk(self, module: nn.Module) -> None:
        """Packs a module and everything below it."""
        if type(module) is RegionProposalNetwork and type(module.head) is RPNHead:
            module.head = TorchvisionProposalHead.replace(module.head)
        if type(module) is IntermediateLayerGetter:
            names: list[str] = []
            returned: Any = module.return_layers
            for name, _ in list(module.named_children()):
                names.append(name)
                if name in returned:
                    self.pack_chain(module, names)
                    names = []
            self.pack_chain(module, names)
        super().walk(module)
        for name, child in list(module.named_children()):
            if not has_hooks(child) and (replacement := _packed_replacement(child)) is not None:
                module.add_module(name, replacement)


def _packed_replacement(module: Any) -> nn.Module | None:
    """Returns the replacement for a module with packed layers, or None."""
    if type(module) in (resnet.BasicBlock, resnet.Bottleneck):
        convs = [m for n, m in module.named_children() if n.startswith("conv")]
        return Residual(module) if all(isinstance(m, PackedConv2d) for m in convs) else None
    if type(module) is MaskRCNNPredictor and isinstance(module.conv5_mask, PackedDeconv2d):
        return MaskPredictor(module)
    # Results of packed convolutions are new tensors, which can be added to in place.
    if type(module) is FeaturePyramidNetwork and all(map(_starts_packed, module.inner_blocks)):
        return Pyramid(module)
    return None


def _starts_packed(head: nn.Module | None) -> bool:
    """Returns whether the first layer of a sequence is packed and accepts any memory format."""
    while isinstance(head, nn.Sequential) and type(head).forward is nn.Sequential.forward:
        head = next(iter(head), None)
    return isinstance(head, PackedConv2d | PackedLinear)


def _affine_parameters(norm: nn.Module) -> Affine:
    return scale_and_shift(norm) if type(norm) is FrozenBatchNorm2d else affine_parameters(norm)


def pack(model: Any, exact: bool) -> None:
    """Packs the layers of a torchvision detector."""
    heads: Any = getattr(model, "roi_heads", None)
    head: Any = getattr(heads, "box_head", None)
    if type(head) is TwoMLPHead and packable(head.fc6) and packable(head.fc7):
        height, width = heads.box_roi_pool.output_size
        map_shape = head.fc6.in_features // (height * width), height, width
        heads.box_head = nn.Sequential(
            PackedLinear(head.fc6, map_shape, relu=True), PackedLinear(head.fc7, relu=True)
        )
    TorchvisionPacker(exact).walk(model)
    for kind in ("box", "mask", "keypoint"):
        pooler: Any = getattr(heads, f"{kind}_roi_pool", None)
        if type(pooler) is MultiScaleRoIAlign and not has_hooks(pooler):
            if _starts_packed(getattr(heads, f"{kind}_head")):
                setattr(heads, f"{kind}_roi_pool", Pooler(pooler))
