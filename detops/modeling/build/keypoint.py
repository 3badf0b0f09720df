"""The keypoint head."""

from typing import Any

from ..backbone.fpn import FPN
from ..registry import ROI_KEYPOINT_FEATURE_EXTRACTORS, ROI_KEYPOINT_PREDICTOR
from ..roi_heads.box import BoxHead
from ..roi_heads.keypoint import KeypointHead
from .pooler import build_pooler
from .shared import check_resolution, shared_extractor


def build_keypoint_head(cfg: Any, fpn: FPN, box: BoxHead) -> KeypointHead:
    """Pooler, feature extractor and predictor of the keypoint head."""
    section = "ROI_KEYPOINT_HEAD"
    keypoint = cfg.MODEL[section]
    if keypoint.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor = shared_extractor(cfg, section, box)
    else:
        extractor = ROI_KEYPOINT_FEATURE_EXTRACTORS[keypoint.FEATURE_EXTRACTOR](
            in_channels=fpn.out_channels,
            pooler=build_pooler(cfg, section, fpn),
            layers=list(keypoint.CONV_LAYERS),
        )
    predictor = ROI_KEYPOINT_PREDICTOR[keypoint.PREDICTOR](
        extractor.out_channels, keypoint.NUM_CLASSES
    )
    check_resolution(cfg, section, extractor, predictor)
    return KeypointHead(
        feature_extractor=extractor,
        predictor=predictor,
        resolution=keypoint.RESOLUTION,
        share_box_features=keypoint.SHARE_BOX_FEATURE_EXTRACTOR,
    )
