"""Bodies and pyramids."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...config import ConfigError
from ..backbone import FPN, Backbone, ResNet
from ..backbone.fpn import LastLevelMaxPool, LastLevelP6P7
from ..backbone.norm import FrozenBatchNorm2d, Norm, group_norm
from ..backbone.resnet import STAGES, BasicBlock, Block, Bottleneck, Stem
from ..registry import BACKBONES


def build_backbone(cfg: Any) -> Backbone:
    """The body, and the pyramid if there is one, that MODEL.BACKBONE.CONV_BODY names."""
    return BACKBONES[cfg.MODEL.BACKBONE.CONV_BODY](cfg)


def build_norm(cfg: Any, kind: str) -> Norm:
    """The normalisation that a TRANS_FUNC or STEM_FUNC names by its ending."""
    if kind.endswith("WithFixedBatchNorm"):
        return FrozenBatchNorm2d
    if kind.endswith("WithGN"):
        return _group_norm(cfg)
    raise ConfigError(f"expected ...WithFixedBatchNorm or ...WithGN, got {kind}")


def _group_norm(cfg: Any) -> Norm:
    gn = cfg.MODEL.GROUP_NORM
    return partial(group_norm, num_groups=gn.NUM_GROUPS, dim_per_gp=gn.DIM_PER_GP, eps=gn.EPSILON)


def build_block(cfg: Any) -> Block:
    """``block(inputs, outputs, stride, stage)`` as MODEL.RESNETS describes it."""
    resnets = cfg.MODEL.RESNETS
    kind, norm = resnets.TRANS_FUNC, build_norm(cfg, resnets.TRANS_FUNC)
    if any(resnets.STAGE_WITH_DCN):
        raise ConfigError("MODEL.RESNETS.STAGE_WITH_DCN: not supported yet, expected all False")
    if kind.startswith("BasicBlock"):
        return lambda inputs, outputs, stride, stage: BasicBlock(inputs, outputs, stride, norm)
    if not kind.startswith("Bottleneck"):
        raise ConfigError(f"MODEL.RESNETS.TRANS_FUNC: unknown block {kind}")
    width = resnets.NUM_GROUPS * resnets.WIDTH_PER_GROUP
    return lambda inputs, outputs, stride, stage: Bottleneck(
        inputs,
        outputs,
        stride,
        norm,
        width=width * 2**stage,
        groups=resnets.NUM_GROUPS,
        stride_in_1x1=resnets.STRIDE_IN_1X1,
    )


def _depths(cfg: Any) -> tuple[int, ...]:
    """Blocks of each stage that is built."""
    depths = STAGES["-".join(cfg.MODEL.BACKBONE.CONV_BODY.split("-")[:2])]
    stages = cfg.MODEL.RESNETS.NUM_STAGES
    if not 1 <= stages <= len(depths):
        raise ConfigError(f"MODEL.RESNETS.NUM_STAGES: expected 1 to 4, got {stages}")
    return depths[:stages]


def build_body(cfg: Any, depths: Sequence[int], first_output: int) -> ResNet:
    """The stem and ``len(depths)`` stages; see :class:`ResNet`."""
    resnets = cfg.MODEL.RESNETS
    return ResNet(
        stem=Stem(resnets.STEM_OUT_CHANNELS, build_norm(cfg, resnets.STEM_FUNC)),
        stem_channels=resnets.STEM_OUT_CHANNELS,
        block=build_block(cfg),
        depths=depths,
        stage_channels=resnets.RES2_OUT_CHANNELS,
        first_output=first_output,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
    )


def _pyramid(
    cfg: Any, body: ResNet, top_blocks: LastLevelMaxPool | LastLevelP6P7 | None
) -> Backbone:
    fpn = FPN(
        body.out_channels,
        cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS,
        first=body.first_output + 1,
        top_blocks=top_blocks,
        norm=_group_norm(cfg) if cfg.MODEL.FPN.USE_GN else None,
        relu=cfg.MODEL.FPN.USE_RELU,
    )
    return Backbone(body, fpn)


@BACKBONES.register(*(f"{depth}-FPN" for depth in STAGES))
def build_resnet_fpn(cfg: Any) -> Backbone:
    """``body`` and ``fpn`` on all its stages."""
    body = build_body(cfg, _depths(cfg), 0)
    return _pyramid(cfg, body, LastLevelMaxPool() if cfg.MODEL.FPN.EXTRA_LEVEL else None)


@BACKBONES.register(*(f"{depth}-FPN-RETINANET" for depth in STAGES))
def build_resnet_fpn_p6p7(cfg: Any) -> Backbone:
    """``body`` and ``fpn`` from stride 8 on, with P6 and P7 on top."""
    depths = _depths(cfg)
    if len(depths) < 2:
        raise ConfigError("MODEL.RESNETS.NUM_STAGES: expected at least 2 for RetinaNet, got 1")
    body = build_body(cfg, depths, 1)
    channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    use_c5 = cfg.MODEL.RETINANET.USE_C5
    inputs = body.out_channels[-1] if use_c5 else channels
    return _pyramid(cfg, body, LastLevelP6P7(inputs, channels, use_c5))
