"""Bounds of single values, so that an error names the key and not the layer that it breaks."""

from collections.abc import Iterator
from typing import Any

from omegaconf import OmegaConf

from ...config import ConfigError

# Keys by the least value that they may have; of a tuple, each item.
AT_LEAST: dict[float, tuple[str, ...]] = {
    0: (
        "MODEL.RPN.POSITIVE_FRACTION",
        "MODEL.RPN.PRE_NMS_TOP_N_TRAIN",
        "MODEL.RPN.PRE_NMS_TOP_N_TEST",
        "MODEL.RPN.POST_NMS_TOP_N_TRAIN",
        "MODEL.RPN.POST_NMS_TOP_N_TEST",
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN",
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST",
        "MODEL.ROI_HEADS.POSITIVE_FRACTION",
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
        "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS",
        "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO",
        "INPUT.MIN_SIZE_TRAIN",
        "INPUT.MIN_SIZE_TEST",
    ),
    1: (
        "MODEL.RPN.ANCHOR_STRIDE",
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE",
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE",
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION",
        "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM",
        "MODEL.ROI_BOX_HEAD.DILATION",
        "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM",
        "MODEL.ROI_BOX_HEAD.POOLER_CANONICAL_SCALE",
        "MODEL.RESNETS.STEM_OUT_CHANNELS",
        "MODEL.RESNETS.RES2_OUT_CHANNELS",
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS",
        "MODEL.RESNETS.NUM_GROUPS",
        "MODEL.RESNETS.WIDTH_PER_GROUP",
        "MODEL.RESNETS.RES5_DILATION",
        "MODEL.RESNETS.DEFORMABLE_GROUPS",
        "INPUT.MAX_SIZE_TRAIN",
        "INPUT.MAX_SIZE_TEST",
    ),
    2: ("MODEL.ROI_BOX_HEAD.NUM_CLASSES",),
}
ABOVE_ZERO = (
    "MODEL.RPN.ANCHOR_SIZES",
    "MODEL.RPN.ASPECT_RATIOS",
    "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS",
    "MODEL.ROI_BOX_HEAD.POOLER_SCALES",
    "MODEL.GROUP_NORM.EPSILON",
    "INPUT.PIXEL_STD",
)
# Keys of tuples by their length.
LENGTHS = {
    "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS": 4,
    "MODEL.RESNETS.STAGE_WITH_DCN": 4,
    "INPUT.PIXEL_MEAN": 3,
    "INPUT.PIXEL_STD": 3,
}
# Sections with an overlap above which a box is matched, and one below which it is background.
MATCHED = ("MODEL.RPN", "MODEL.ROI_HEADS")


def check_values(cfg: Any) -> None:
    """Looks at what the body, the RPN, the box head and the preparation of images read.

    Raises:
        ConfigError: a number is too small, or a tuple too short or long; names the key.
    """
    for least, keys in AT_LEAST.items():
        for key in keys:
            if any(v < least for v in _numbers(cfg, key)):
                raise ConfigError(f"{key}: expected at least {least}, got {_shown(cfg, key)}")
    for key in ABOVE_ZERO:
        if any(v <= 0 for v in _numbers(cfg, key)):
            raise ConfigError(f"{key}: expected more than 0, got {_shown(cfg, key)}")
    for key, length in LENGTHS.items():
        if len(OmegaConf.select(cfg, key)) != length:
            raise ConfigError(f"{key}: expected {length} values, got {_shown(cfg, key)}")
    for section in MATCHED:
        part = OmegaConf.select(cfg, section)
        if not 0 <= part.BG_IOU_THRESHOLD <= part.FG_IOU_THRESHOLD:
            raise ConfigError(
                f"{section}.BG_IOU_THRESHOLD, {section}.FG_IOU_THRESHOLD: expected 0 or more, and "
                f"ascending, got {part.BG_IOU_THRESHOLD} and {part.FG_IOU_THRESHOLD}"
            )


def _shown(cfg: Any, key: str) -> Any:
    value = OmegaConf.select(cfg, key)
    return OmegaConf.to_container(value) if OmegaConf.is_list(value) else value


def _numbers(cfg: Any, key: str) -> Iterator[float]:
    """The value, or all in it, however nested; an empty tuple is an error."""
    found = [_shown(cfg, key)]
    while found:
        value = found.pop()
        if isinstance(value, list):
            if not value:
                raise ConfigError(f"{key}: expected at least one value, got {_shown(cfg, key)}")
            found += value
        else:
            yield value
