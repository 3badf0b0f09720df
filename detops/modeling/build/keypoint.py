"""Builders of the keypoint head."""

from typing import Any

from ..backbone import Backbone
from ..convention import get_convention
from ..registry import ROI_KEYPOINT_FEATURE_EXTRACTORS, ROI_KEYPOINT_PREDICTOR
from ..roi_heads.box import BoxHead
from ..roi_heads.keypoint import KeypointHead, KeypointRCNNFeatureExtractor
from .pooler import build_pooler
from .shared import check_resolution, shared_extractor

SECTION = "ROI_KEYPOINT_HEAD"


@ROI_KEYPOINT_FEATURE_EXTRACTORS.register("KeypointRCNNFeatureExtractor")
def _convolutions(cfg: Any, backbone: Backbone) -> KeypointRCNNFeatureExtractor:
    return KeypointRCNNFeatureExtractor(
        in_channels=backbone.out_channels,
        pooler=build_pooler(cfg, backbone, SECTION),
        layers=list(cfg.MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS),
    )


def build_keypoint_head(cfg: Any, backbone: Backbone, box: BoxHead) -> KeypointHead:
    """Builds the keypoint head, whose feature extractor may be the box head's."""
    keypoint = cfg.MODEL.ROI_KEYPOINT_HEAD
    if keypoint.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor = shared_extractor(cfg, SECTION, box)
    else:
        extractor = ROI_KEYPOINT_FEATURE_EXTRACTORS[keypoint.FEATURE_EXTRACTOR](cfg, backbone)
    predictor = ROI_KEYPOINT_PREDICTOR[keypoint.PREDICTOR](
        extractor.out_channels, keypoint.NUM_CLASSES
    )
    check_resolution(cfg, SECTION, extractor, predictor)
    return KeypointHead(
        feature_extractor=extractor,
        predictor=predictor,
        resolution=keypoint.RESOLUTION,
        share_box_features=keypoint.SHARE_BOX_FEATURE_EXTRACTOR,
        convention=get_convention(cfg),
    )
