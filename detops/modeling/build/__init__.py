"""Builds a detector from a config: the only place that reads all of it.

One file per part of the network; each part itself takes built parts and plain values.
"""

from typing import Any

from torch import nn

from ...config import ConfigError
from ..generalized_rcnn import GeneralizedRCNN
from .backbone import build_backbone
from .roi_heads import build_roi_heads
from .rpn import build_rpn

__all__ = ["build_detection_model"]


def build_detection_model(cfg: Any) -> nn.Module:
    """The network that a config (see :func:`detops.config.load_config`) describes.

    Raises:
        ConfigError: a combination that does not exist; names the key.
    """
    if cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise ConfigError(
            f"MODEL.META_ARCHITECTURE: expected GeneralizedRCNN, got {cfg.MODEL.META_ARCHITECTURE}"
        )
    for key in ("RPN_ONLY", "RETINANET_ON"):
        if cfg.MODEL[key]:
            raise ConfigError(f"MODEL.{key}: not supported yet, expected False")
    if not cfg.MODEL.RPN.USE_FPN or not cfg.MODEL.ROI_HEADS.USE_FPN:
        raise ConfigError("MODEL.RPN.USE_FPN, MODEL.ROI_HEADS.USE_FPN: expected True, got False")
    try:
        backbone = build_backbone(cfg)
        return GeneralizedRCNN(
            backbone=backbone,
            rpn=build_rpn(cfg, backbone.fpn),
            roi_heads=build_roi_heads(cfg, backbone.fpn),
            pixel_mean=list(cfg.INPUT.PIXEL_MEAN),
            pixel_std=list(cfg.INPUT.PIXEL_STD),
            to_bgr255=cfg.INPUT.TO_BGR255,
            min_size_train=list(cfg.INPUT.MIN_SIZE_TRAIN),
            max_size_train=cfg.INPUT.MAX_SIZE_TRAIN,
            min_size_test=cfg.INPUT.MIN_SIZE_TEST,
            max_size_test=cfg.INPUT.MAX_SIZE_TEST,
            size_divisibility=cfg.DATALOADER.SIZE_DIVISIBILITY,
            num_classes=cfg.MODEL.ROI_BOX_HEAD.NUM_CLASSES,
            with_masks=cfg.MODEL.MASK_ON,
            mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
            num_keypoints=cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES if cfg.MODEL.KEYPOINT_ON else 0,
        )
    except ConfigError:
        raise
    except ValueError as error:  # a part refused its arguments
        raise ConfigError(str(error)) from error
