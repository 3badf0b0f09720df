"""Builders of the mask head."""

from functools import partial
from typing import Any

from ...config import ConfigError
from ..backbone import Backbone
from ..registry import ROI_MASK_FEATURE_EXTRACTORS, ROI_MASK_PREDICTOR
from ..roi_heads.box import BoxHead
from ..roi_heads.mask import MaskHead, MaskRCNNFPNFeatureExtractor
from .backbone import build_group_norm
from .box import build_conv5_extractor
from .pooler import build_pooler
from .shared import check_resolution, shared_extractor

SECTION = "ROI_MASK_HEAD"

ROI_MASK_FEATURE_EXTRACTORS.register("ResNet50Conv5ROIFeatureExtractor")(
    partial(build_conv5_extractor, section=SECTION)
)


@ROI_MASK_FEATURE_EXTRACTORS.register("MaskRCNNFPNFeatureExtractor")
def _convolutions(cfg: Any, backbone: Backbone) -> MaskRCNNFPNFeatureExtractor:
    mask = cfg.MODEL.ROI_MASK_HEAD
    return MaskRCNNFPNFeatureExtractor(
        in_channels=backbone.out_channels,
        pooler=build_pooler(cfg, backbone, SECTION),
        layers=list(mask.CONV_LAYERS),
        dilation=mask.DILATION,
        norm=build_group_norm(cfg) if mask.USE_GN else None,
    )


def build_mask_head(cfg: Any, backbone: Backbone, box: BoxHead) -> MaskHead:
    """Builds the mask head, whose feature extractor may be the box head's."""
    mask = cfg.MODEL.ROI_MASK_HEAD
    if not mask.CONV_LAYERS:
        raise ConfigError("MODEL.ROI_MASK_HEAD.CONV_LAYERS: expected at least one, got none")
    if mask.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor = shared_extractor(cfg, SECTION, box)
    else:
        extractor = ROI_MASK_FEATURE_EXTRACTORS[mask.FEATURE_EXTRACTOR](cfg, backbone)
    predictor = ROI_MASK_PREDICTOR[mask.PREDICTOR](
        extractor.out_channels, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES, mask.CONV_LAYERS[-1]
    )
    check_resolution(cfg, SECTION, extractor, predictor)
    return MaskHead(
        feature_extractor=extractor,
        predictor=predictor,
        share_box_features=mask.SHARE_BOX_FEATURE_EXTRACTOR,
    )
