"""The mask head."""

from typing import Any

from ...config import ConfigError
from ..backbone.fpn import FPN
from ..registry import ROI_MASK_FEATURE_EXTRACTORS, ROI_MASK_PREDICTOR
from ..roi_heads.box import BoxHead
from ..roi_heads.mask import MaskHead
from .backbone import build_norm
from .pooler import build_pooler
from .shared import check_resolution, shared_extractor


def build_mask_head(cfg: Any, fpn: FPN, box: BoxHead) -> MaskHead:
    """Pooler, feature extractor and predictor of the mask head."""
    section = "ROI_MASK_HEAD"
    mask = cfg.MODEL[section]
    if not mask.CONV_LAYERS:
        raise ConfigError("MODEL.ROI_MASK_HEAD.CONV_LAYERS: expected at least one, got none")
    if mask.SHARE_BOX_FEATURE_EXTRACTOR:
        extractor = shared_extractor(cfg, section, box)
    else:
        extractor = ROI_MASK_FEATURE_EXTRACTORS[mask.FEATURE_EXTRACTOR](
            in_channels=fpn.out_channels,
            pooler=build_pooler(cfg, section, fpn),
            layers=list(mask.CONV_LAYERS),
            dilation=mask.DILATION,
            norm=build_norm(cfg, "WithGN") if mask.USE_GN else None,
        )
    predictor = ROI_MASK_PREDICTOR[mask.PREDICTOR](
        extractor.out_channels, cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES, mask.CONV_LAYERS[-1]
    )
    check_resolution(cfg, section, extractor, predictor)
    return MaskHead(
        feature_extractor=extractor,
        predictor=predictor,
        share_box_features=mask.SHARE_BOX_FEATURE_EXTRACTOR,
    )
