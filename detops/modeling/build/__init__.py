"""Builders of a detector from a config.

Only this package reads the whole config. It has one file per part of the network; the constructors
of the parts accept built modules and plain values.
"""

from typing import Any

from ...config import ConfigError
from ..convention import get_convention
from ..generalized_rcnn import GeneralizedRCNN
from .backbone import build_backbone
from .check import check_values
from .retinanet import build_retinanet
from .roi_heads import build_roi_heads
from .rpn import build_rpn
from .views import build_views

__all__ = ["build_detection_model", "num_classes"]


def build_detection_model(cfg: Any) -> GeneralizedRCNN:
    """Builds the network that a config describes; see :func:`detops.config.load_config`.

    Raises:
        ConfigError: a combination of values is not supported; the message names the key.

    Example:
        >>> cfg = detops.config.load_config(None, ["INPUT.MIN_SIZE_TEST", 64])
        >>> model = build_detection_model(cfg)
        >>> [*model.eval()([torch.rand(3, 48, 64)])[0]]
        ['boxes', 'labels', 'scores']
    """
    if cfg.MODEL.META_ARCHITECTURE != "GeneralizedRCNN":
        raise ConfigError(
            f"MODEL.META_ARCHITECTURE: expected GeneralizedRCNN, got {cfg.MODEL.META_ARCHITECTURE}"
        )
    check_values(cfg)
    retinanet = cfg.MODEL.RETINANET_ON
    # Configs of RetinaNets set RPN_ONLY as well.
    rpn_only = cfg.MODEL.RPN_ONLY and not retinanet
    heads = not (retinanet or rpn_only)
    for key in ("MASK_ON", "KEYPOINT_ON"):
        if cfg.MODEL[key] and not heads:
            raise ConfigError(
                f"MODEL.{key}: expected False with MODEL.RPN_ONLY or MODEL.RETINANET_ON, got True"
            )
    try:
        backbone = build_backbone(cfg)
        return GeneralizedRCNN(
            backbone=backbone,
            rpn=(build_retinanet if retinanet else build_rpn)(cfg, backbone),
            roi_heads=build_roi_heads(cfg, backbone) if heads else None,
            pixel_mean=list(cfg.INPUT.PIXEL_MEAN),
            pixel_std=list(cfg.INPUT.PIXEL_STD),
            to_bgr255=cfg.INPUT.TO_BGR255,
            min_size_train=list(cfg.INPUT.MIN_SIZE_TRAIN),
            max_size_train=cfg.INPUT.MAX_SIZE_TRAIN,
            min_size_test=cfg.INPUT.MIN_SIZE_TEST,
            max_size_test=cfg.INPUT.MAX_SIZE_TEST,
            size_divisibility=cfg.DATALOADER.SIZE_DIVISIBILITY,
            num_classes=None if rpn_only else num_classes(cfg)[1],
            with_masks=cfg.MODEL.MASK_ON,
            mask_threshold=cfg.MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD,
            views=build_views(cfg),
            convention=get_convention(cfg),
            num_keypoints=cfg.MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES if cfg.MODEL.KEYPOINT_ON else 0,
        )
    except ConfigError:
        raise
    except ValueError as error:  # a module rejected its arguments
        raise ConfigError(str(error)) from error


def num_classes(cfg: Any) -> tuple[str, int]:
    """Returns the key with the number of classes, including background, and its value."""
    section = "RETINANET" if cfg.MODEL.RETINANET_ON else "ROI_BOX_HEAD"
    return f"MODEL.{section}.NUM_CLASSES", cfg.MODEL[section].NUM_CLASSES
