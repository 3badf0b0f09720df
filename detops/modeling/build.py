"""Builds a detector from a config: the only file that reads all of it."""

from collections import OrderedDict
from functools import partial
from typing import Any

from torch import nn

from ..config import ConfigError
from ..ops import BoxCoder
from .backbone.fpn import FPN
from .backbone.norm import FrozenBatchNorm2d, Norm, group_norm
from .backbone.resnet import STAGES, BasicBlock, Block, Bottleneck, ResNet, Stem
from .balanced_sampler import BalancedSampler
from .generalized_rcnn import GeneralizedRCNN
from .matcher import Matcher
from .poolers import Pooler
from .registry import BACKBONES, ROI_BOX_FEATURE_EXTRACTORS, ROI_BOX_PREDICTOR, RPN_HEADS
from .roi_heads import RoIHeads
from .roi_heads.box import BoxHead
from .rpn import RPN, AnchorGenerator


def build_detection_model(cfg: Any) -> nn.Module:
    """The network that a config (see :func:`detops.config.load_config`) describes.

    Raises:
        ConfigError: a combination that does not exist; names the key.
    """
    if cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise ConfigError(
            f"MODEL.META_ARCHITECTURE: expected GeneralizedRCNN, got {cfg.MODEL.META_ARCHITECTURE}"
        )
    for key in ("RPN_ONLY", "MASK_ON", "RETINANET_ON", "KEYPOINT_ON"):
        if cfg.MODEL[key]:
            raise ConfigError(f"MODEL.{key}: not supported yet, expected False")
    if not cfg.MODEL.RPN.USE_FPN or not cfg.MODEL.ROI_HEADS.USE_FPN:
        raise ConfigError("MODEL.RPN.USE_FPN, MODEL.ROI_HEADS.USE_FPN: expected True, got False")
    try:
        backbone = BACKBONES[cfg.MODEL.BACKBONE.CONV_BODY](cfg)
        return GeneralizedRCNN(
            backbone=backbone,
            rpn=build_rpn(cfg, backbone.fpn),
            roi_heads=RoIHeads(box=build_box_head(cfg, backbone.fpn)),
            pixel_mean=list(cfg.INPUT.PIXEL_MEAN),
            pixel_std=list(cfg.INPUT.PIXEL_STD),
            to_bgr255=cfg.INPUT.TO_BGR255,
            min_size_train=list(cfg.INPUT.MIN_SIZE_TRAIN),
            max_size_train=cfg.INPUT.MAX_SIZE_TRAIN,
            min_size_test=cfg.INPUT.MIN_SIZE_TEST,
            max_size_test=cfg.INPUT.MAX_SIZE_TEST,
            size_divisibility=cfg.DATALOADER.SIZE_DIVISIBILITY,
            num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
        )
    except ConfigError:
        raise
    except ValueError as error:  # a part refused its arguments
        raise ConfigError(str(error)) from error


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


def build_rpn(cfg: Any, fpn: FPN) -> RPN:
    """Anchors, head and selection of the region proposal network."""
    rpn = cfg.MODEL.RPN
    sizes = [(s,) if isinstance(s, (int, float)) else tuple(s) for s in rpn.ANCHOR_SIZES]
    if len(sizes) != fpn.levels or len(rpn.ANCHOR_STRIDE) != fpn.levels:
        raise ConfigError(
            f"MODEL.RPN.ANCHOR_SIZES, MODEL.RPN.ANCHOR_STRIDE: expected one entry per level "
            f"({fpn.levels}), got {len(sizes)} and {len(rpn.ANCHOR_STRIDE)}"
        )
    anchors = AnchorGenerator(
        sizes, list(rpn.ASPECT_RATIOS), list(rpn.ANCHOR_STRIDE), rpn.STRADDLE_THRESH
    )
    counts = set(anchors.num_anchors())
    if len(counts) > 1:
        raise ConfigError(
            "MODEL.RPN.ANCHOR_SIZES: expected as many sizes on every level, for the levels share "
            f"a head, got {sizes}"
        )
    return RPN(
        anchor_generator=anchors,
        head=RPN_HEADS[rpn.RPN_HEAD](fpn.out_channels, counts.pop()),
        matcher=Matcher(rpn.FG_IOU_THRESHOLD, rpn.BG_IOU_THRESHOLD, True),
        sampler=BalancedSampler(rpn.BATCH_SIZE_PER_IMAGE, rpn.POSITIVE_FRACTION),
        box_coder=BoxCoder(),
        pre_nms_top_n=(rpn.PRE_NMS_TOP_N_TRAIN, rpn.PRE_NMS_TOP_N_TEST),
        post_nms_top_n=(rpn.POST_NMS_TOP_N_TRAIN, rpn.POST_NMS_TOP_N_TEST),
        fpn_post_nms_top_n=(rpn.FPN_POST_NMS_TOP_N_TRAIN, rpn.FPN_POST_NMS_TOP_N_TEST),
        fpn_post_nms_per_batch=rpn.FPN_POST_NMS_PER_BATCH,
        nms_thresh=rpn.NMS_THRESH,
        min_size=rpn.MIN_SIZE,
    )


def build_box_head(cfg: Any, fpn: FPN) -> BoxHead:
    """Pooler, feature extractor and predictor of the box head."""
    heads, box = cfg.MODEL.ROI_HEADS, cfg.MODEL.ROI_BOX_HEAD
    if len(box.POOLER_SCALES) > fpn.levels:
        raise ConfigError(
            f"MODEL.ROI_BOX_HEAD.POOLER_SCALES: expected at most {fpn.levels}, one per level, "
            f"got {len(box.POOLER_SCALES)}"
        )
    extractor = ROI_BOX_FEATURE_EXTRACTORS[box.FEATURE_EXTRACTOR](
        in_channels=fpn.out_channels,
        pooler=Pooler(
            box.POOLER_RESOLUTION,
            list(box.POOLER_SCALES),
            box.POOLER_SAMPLING_RATIO,
            box.POOLER_CANONICAL_SCALE,
            box.POOLER_CANONICAL_LEVEL,
        ),
        hidden_features=box.MLP_HEAD_DIM,
    )
    agnostic = cfg.MODEL.CLS_AGNOSTIC_BBOX_REG
    return BoxHead(
        feature_extractor=extractor,
        predictor=ROI_BOX_PREDICTOR[box.PREDICTOR](
            extractor.out_features, box.NUM_CLASSES, agnostic
        ),
        box_coder=BoxCoder(tuple(heads.BBOX_REG_WEIGHTS)),
        matcher=Matcher(heads.FG_IOU_THRESHOLD, heads.BG_IOU_THRESHOLD),
        sampler=BalancedSampler(heads.BATCH_SIZE_PER_IMAGE, heads.POSITIVE_FRACTION),
        score_thresh=heads.SCORE_THRESH,
        nms_thresh=heads.NMS,
        detections_per_img=heads.DETECTIONS_PER_IMG,
        class_agnostic=agnostic,
    )
