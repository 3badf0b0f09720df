"""Builders of bodies and feature pyramids."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from omegaconf import OmegaConf
from torch import nn

from ...config import ConfigError
from ..backbone import FPN, Backbone, ResNet
from ..backbone.fpn import LastLevelMaxPool, LastLevelP6P7
from ..backbone.norm import FrozenBatchNorm2d, Norm, group_norm
from ..backbone.resnet import STAGES, BasicBlock, Block, Bottleneck, Stem, stack
from ..registry import BACKBONES


def build_backbone(cfg: Any) -> Backbone:
    """Builds the body, with or without a pyramid, that MODEL.BACKBONE.CONV_BODY names."""
    return BACKBONES[cfg.MODEL.BACKBONE.CONV_BODY](cfg)


def build_norm(cfg: Any, key: str) -> Norm:
    """Returns the normalisation that the value of a config key names by its suffix."""
    kind = OmegaConf.select(cfg, key)
    if kind.endswith("WithFixedBatchNorm"):
        return FrozenBatchNorm2d
    if kind.endswith("WithGN"):
        return build_group_norm(cfg)
    raise ConfigError(f"{key}: expected ...WithFixedBatchNorm or ...WithGN, got {kind}")


def build_group_norm(cfg: Any) -> Norm:
    """Returns the normalisation that MODEL.GROUP_NORM describes."""
    gn = cfg.MODEL.GROUP_NORM
    return partial(group_norm, num_groups=gn.NUM_GROUPS, dim_per_gp=gn.DIM_PER_GP, eps=gn.EPSILON)


def build_block(cfg: Any, deformable: bool = True) -> Block:
    """Returns ``block(inputs, outputs, stride, stage)`` as MODEL.RESNETS describes it.

    Args:
        cfg: the config.
        deformable: make the stages of STAGE_WITH_DCN deformable; otherwise none.
    """
    resnets = cfg.MODEL.RESNETS
    kind, norm = resnets.TRANS_FUNC, build_norm(cfg, "MODEL.RESNETS.TRANS_FUNC")
    dcn = list(resnets.STAGE_WITH_DCN)
    if kind.startswith("BasicBlock"):
        if any(dcn) or resnets.NUM_GROUPS > 1 or resnets.RES5_DILATION > 1:
            raise ConfigError(
                "MODEL.RESNETS.TRANS_FUNC: basic blocks do not support STAGE_WITH_DCN, NUM_GROUPS "
                "and RES5_DILATION"
            )
        return lambda inputs, outputs, stride, stage: BasicBlock(inputs, outputs, stride, norm)
    if not kind.startswith("Bottleneck"):
        raise ConfigError(f"MODEL.RESNETS.TRANS_FUNC: unknown block {kind}")
    width = resnets.NUM_GROUPS * resnets.WIDTH_PER_GROUP
    if any(dcn) and width % resnets.DEFORMABLE_GROUPS:
        raise ConfigError(
            f"MODEL.RESNETS.DEFORMABLE_GROUPS: expected a divisor of {width}, "
            f"got {resnets.DEFORMABLE_GROUPS}"
        )
    return lambda inputs, outputs, stride, stage: Bottleneck(
        inputs,
        outputs,
        stride,
        norm,
        width=width * 2**stage,
        groups=resnets.NUM_GROUPS,
        dilation=resnets.RES5_DILATION if stage == 3 else 1,
        stride_in_1x1=resnets.STRIDE_IN_1X1,
        deformable_groups=resnets.DEFORMABLE_GROUPS if deformable and dcn[stage] else 0,
        modulated=resnets.WITH_MODULATED_DCN,
    )


def _depths(cfg: Any) -> tuple[int, ...]:
    """Returns the number of blocks of each stage that is built."""
    depths = STAGES["-".join(cfg.MODEL.BACKBONE.CONV_BODY.split("-")[:2])]
    return depths[: cfg.MODEL.RESNETS.NUM_STAGES]


def build_conv5(cfg: Any, in_channels: int) -> tuple[nn.Sequential, int]:
    """Builds ``layer4`` as a head; returns it and its channels.

    It is never deformable, as in maskrcnn-benchmark, whatever the value of STAGE_WITH_DCN.
    """
    outputs = 8 * cfg.MODEL.RESNETS.RES2_OUT_CHANNELS
    block, depth = build_block(cfg, deformable=False), _depths(cfg)[-1]
    return nn.Sequential(OrderedDict(layer4=stack(block, in_channels, outputs, depth, 3))), outputs


def _body(cfg: Any, depths: Sequence[int], first_output: int) -> ResNet:
    resnets = cfg.MODEL.RESNETS
    return ResNet(
        stem=Stem(resnets.STEM_OUT_CHANNELS, build_norm(cfg, "MODEL.RESNETS.STEM_FUNC")),
        stem_channels=resnets.STEM_OUT_CHANNELS,
        block=build_block(cfg),
        depths=depths,
        stage_channels=resnets.RES2_OUT_CHANNELS,
        first_output=first_output,
        freeze_at=cfg.MODEL.BACKBONE.FREEZE_CONV_BODY_AT,
    )


@BACKBONES.register(*(f"{depth}-C{i}" for depth in STAGES for i in (4, 5)))
def build_resnet(cfg: Any) -> Backbone:
    """Builds ``body``, with its last feature map as output: stride 16 for C4, 32 for C5."""
    name, resnets = cfg.MODEL.BACKBONE.CONV_BODY, cfg.MODEL.RESNETS
    depths = _depths(cfg)
    if len(depths) < 4:
        raise ConfigError(f"MODEL.RESNETS.NUM_STAGES: expected 4 with {name}, got {len(depths)}")
    stages = int(name[-1]) - 1
    body = _body(cfg, depths[:stages], stages - 1)
    if resnets.BACKBONE_OUT_CHANNELS != body.out_channels[-1]:
        raise ConfigError(
            f"MODEL.RESNETS.BACKBONE_OUT_CHANNELS: expected {body.out_channels[-1]}, the output "
            f"channels of {name}, got {resnets.BACKBONE_OUT_CHANNELS}"
        )
    return Backbone(body)


def _pyramid(
    cfg: Any, body: ResNet, top_blocks: LastLevelMaxPool | LastLevelP6P7 | None
) -> Backbone:
    if cfg.MODEL.RESNETS.RES5_DILATION > 1:
        raise ConfigError(
            "MODEL.RESNETS.RES5_DILATION: expected 1 with a pyramid, whose levels halve in size, "
            f"got {cfg.MODEL.RESNETS.RES5_DILATION}"
        )
    fpn = FPN(
        body.out_channels,
        cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS,
        first=body.first_output + 1,
        top_blocks=top_blocks,
        norm=build_group_norm(cfg) if cfg.MODEL.FPN.USE_GN else None,
        relu=cfg.MODEL.FPN.USE_RELU,
    )
    return Backbone(body, fpn)


@BACKBONES.register(*(f"{depth}-FPN" for depth in STAGES))
def build_resnet_fpn(cfg: Any) -> Backbone:
    """Builds ``body``, and ``fpn`` on all its stages."""
    body = _body(cfg, _depths(cfg), 0)
    return _pyramid(cfg, body, LastLevelMaxPool() if cfg.MODEL.FPN.EXTRA_LEVEL else None)


@BACKBONES.register(*(f"{depth}-FPN-RETINANET" for depth in STAGES))
def build_resnet_fpn_p6p7(cfg: Any) -> Backbone:
    """Builds ``body``, and ``fpn`` from stride 8 on, with P6 and P7 on top."""
    depths = _depths(cfg)
    if len(depths) < 2:
        raise ConfigError("MODEL.RESNETS.NUM_STAGES: expected at least 2 for RetinaNet, got 1")
    body = _body(cfg, depths, 1)
    channels = cfg.MODEL.RESNETS.BACKBONE_OUT_CHANNELS
    use_c5 = cfg.MODEL.RETINANET.USE_C5
    inputs = body.out_channels[-1] if use_c5 else channels
    return _pyramid(cfg, body, LastLevelP6P7(inputs, channels, use_c5))
