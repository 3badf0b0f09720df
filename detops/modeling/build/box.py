"""Builders of the box head."""

from typing import Any

from ...ops import BoxCoder
from ..backbone import Backbone
from ..balanced_sampler import BalancedSampler
from ..convention import get_convention
from ..matcher import Matcher
from ..registry import ROI_BOX_FEATURE_EXTRACTORS, ROI_BOX_PREDICTOR
from ..roi_heads.box import (
    BoxHead,
    FPN2MLPFeatureExtractor,
    FPNXconv1fcFeatureExtractor,
    ResNet50Conv5ROIFeatureExtractor,
)
from .backbone import build_conv5, build_group_norm
from .pooler import build_pooler


@ROI_BOX_FEATURE_EXTRACTORS.register("ResNet50Conv5ROIFeatureExtractor")
def build_conv5_extractor(
    cfg: Any, backbone: Backbone, section: str = "ROI_BOX_HEAD"
) -> ResNet50Conv5ROIFeatureExtractor:
    """Builds pooling by a config section, then ``head.layer4``; any head may use it."""
    head, channels = build_conv5(cfg, backbone.out_channels)
    return ResNet50Conv5ROIFeatureExtractor(
        pooler=build_pooler(cfg, backbone, section),
        head=head,
        # A dilated stage keeps the size.
        stride=2 if cfg.MODEL.RESNETS.RES5_DILATION == 1 else 1,
        out_channels=channels,
    )


@ROI_BOX_FEATURE_EXTRACTORS.register("FPN2MLPFeatureExtractor")
def _two_layers(cfg: Any, backbone: Backbone) -> FPN2MLPFeatureExtractor:
    box = cfg.MODEL.ROI_BOX_HEAD
    return FPN2MLPFeatureExtractor(
        in_channels=backbone.out_channels,
        pooler=build_pooler(cfg, backbone, "ROI_BOX_HEAD"),
        hidden_features=box.MLP_HEAD_DIM,
        norm=build_group_norm(cfg) if box.USE_GN else None,
    )


@ROI_BOX_FEATURE_EXTRACTORS.register("FPNXconv1fcFeatureExtractor")
def _convolutions_and_layer(cfg: Any, backbone: Backbone) -> FPNXconv1fcFeatureExtractor:
    box = cfg.MODEL.ROI_BOX_HEAD
    return FPNXconv1fcFeatureExtractor(
        in_channels=backbone.out_channels,
        pooler=build_pooler(cfg, backbone, "ROI_BOX_HEAD"),
        conv_channels=box.CONV_HEAD_DIM,
        num_convs=box.NUM_STACKED_CONVS,
        hidden_features=box.MLP_HEAD_DIM,
        dilation=box.DILATION,
        norm=build_group_norm(cfg) if box.USE_GN else None,
    )


def build_box_head(cfg: Any, backbone: Backbone) -> BoxHead:
    """Builds the box head, with its pooler, feature extractor and predictor."""
    heads, box = cfg.MODEL.ROI_HEADS, cfg.MODEL.ROI_BOX_HEAD
    extractor = ROI_BOX_FEATURE_EXTRACTORS[box.FEATURE_EXTRACTOR](cfg, backbone)
    agnostic = cfg.MODEL.CLS_AGNOSTIC_BBOX_REG
    return BoxHead(
        feature_extractor=extractor,
        predictor=ROI_BOX_PREDICTOR[box.PREDICTOR](
            extractor.out_channels, box.NUM_CLASSES, agnostic
        ),
        box_coder=BoxCoder(tuple(heads.BBOX_REG_WEIGHTS)),
        matcher=Matcher(heads.FG_IOU_THRESHOLD, heads.BG_IOU_THRESHOLD),
        sampler=BalancedSampler(heads.BATCH_SIZE_PER_IMAGE, heads.POSITIVE_FRACTION),
        score_thresh=heads.SCORE_THRESH,
        nms_thresh=heads.NMS,
        detections_per_img=heads.DETECTIONS_PER_IMG,
        class_agnostic=agnostic,
        convention=get_convention(cfg),
    )
