"""Bodies and pyramids."""

from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from ...config import ConfigError
from ..backbone.fpn import FPN
from ..backbone.norm import FrozenBatchNorm2d, Norm, group_norm
from ..backbone.resnet import STAGES, BasicBlock, Block, Bottleneck, ResNet, Stem
from ..registry import BACKBONES


def build_backbone(cfg: Any) -> nn.Module:
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


@BACKBONES.register(*(f"{depth}-FPN" for depth in STAGES))
def build_resnet_fpn(cfg: Any) -> nn.Sequential:
    """``body`` and ``fpn``."""
    resnets = cfg.MODEL.RESNETS
    depths = STAGES[cfg.MODEL.BACKBONE.CONV_BODY.removesuffix("-FPN")]
    if not 1 <= resnets.NUM_STAGES <= len(depths):
        raise ConfigError(f"MODEL.RESNETS.NUM_STAGES: expected 1 to 4, got {resnets.NUM_STAGES}")
    body = ResNet(
        stem=Stem(resnets.STEM_OUT_CHANNELS, build_norm(cfg, resnets.STEM_FUNC)),
        stem_channels=resnets.STEM_OUT_CHANNELS,
        block=build_block(cfg),
        depths=depths[: resnets.NUM_STAGES],
        stage_channels=resnets.RES2_OUT_CHANNELS,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
    )
    fpn = FPN(
        body.out_channels,
        resnets.BACKBONE_OUT_CHANNELS,
        extra_level=cfg.MODEL.FPN.EXTRA_LEVEL,
        norm=_group_norm(cfg) if cfg.MODEL.FPN.USE_GN else None,
        relu=cfg.MODEL.FPN.USE_RELU,
    )
    return nn.Sequential(OrderedDict(body=body, fpn=fpn))
