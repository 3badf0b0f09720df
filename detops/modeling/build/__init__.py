"""Builds a detector from a config: the only place that reads all of it.

One file per part of the network; each part itself takes built parts and plain values.
"""

from typing import Any

from torch import nn

from ...config import ConfigError
from ..generalized_rcnn import GeneralizedRCNN
from ..roi_heads import RoIHeads
from .backbone import build_backbone
from .box import build_box_head
from .check import check_values
from .retinanet import build_retinanet
from .rpn import build_rpn

__all__ = ["build_detection_model", "num_classes"]


def build_detection_model(cfg: Any) -> nn.Module:
    """The network that a config (see :func:`detops.config.load_config`) describes.

    Raises:
        ConfigError: a combination that does not exist; names the key.
    """
    if cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise ConfigError(
            f"MODEL.META_ARCHITECTURE: expected GeneralizedRCNN, got {cfg.MODEL.META_ARCHITECTURE}"
        )
    check_values(cfg)
    retinanet = cfg.MODEL.RETINANET_ON
    # A RetinaNet's config has RPN_ONLY set as well.
    rpn_only = cfg.MODEL.RPN_ONLY and not retinanet
    for key in ("MASK_ON", "KEYPOINT_ON"):
        if cfg.MODEL[key]:
            raise ConfigError(f"MODEL.{key}: not supported yet, expected False")
    try:
        backbone = build_backbone(cfg)
        return GeneralizedRCNN(
            backbone=backbone,
            rpn=(build_retinanet if retinanet else build_rpn)(cfg, backbone),
            roi_heads=None
            if retinanet or rpn_only
            else RoIHeads(box=build_box_head(cfg, backbone)),
            pixel_mean=list(cfg.INPUT.PIXEL_MEAN),
            pixel_std=list(cfg.INPUT.PIXEL_STD),
            to_bgr255=cfg.INPUT.TO_BGR255,
            min_size_train=list(cfg.INPUT.MIN_SIZE_TRAIN),
            max_size_train=cfg.INPUT.MAX_SIZE_TRAIN,
            min_size_test=cfg.INPUT.MIN_SIZE_TEST,
            max_size_test=cfg.INPUT.MAX_SIZE_TEST,
            size_divisibility=cfg.DATALOADER.SIZE_DIVISIBILITY,
            num_classes=None if rpn_only else num_classes(cfg)[1],
        )
    except ConfigError:
        raise
    except ValueError as error:  # a part refused its arguments
        raise ConfigError(str(error)) from error


def num_classes(cfg: Any) -> tuple[str, int]:
    """The key that counts the classes, background included, and its value."""
    section = "RETINANET" if cfg.MODEL.RETINANET_ON else "ROI_BOX_HEAD"
    return f"MODEL.{section}.NUM_CLASSES", cfg.MODEL[section].NUM_CLASSES
