"""The box head."""

from typing import Any

from ...ops import BoxCoder
from ..backbone.fpn import FPN
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher
from ..registry import ROI_BOX_FEATURE_EXTRACTORS, ROI_BOX_PREDICTOR
from ..roi_heads.box import BoxHead
from .pooler import build_pooler


def build_box_head(cfg: Any, fpn: FPN) -> BoxHead:
    """Pooler, feature extractor and predictor of the box head."""
    heads, box = cfg.MODEL.ROI_HEADS, cfg.MODEL.ROI_BOX_HEAD
    extractor = ROI_BOX_FEATURE_EXTRACTORS[box.FEATURE_EXTRACTOR](
        in_channels=fpn.out_channels,
        pooler=build_pooler(cfg, "ROI_BOX_HEAD", fpn),
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
