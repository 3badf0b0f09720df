"""Checks of config keys that depend on each other, and of unused ones."""

from typing import Any

from omegaconf import OmegaConf

from ...config import ConfigError, load_config

# Required lengths of tuples.
LENGTHS = {
    "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS": 4,
    "MODEL.RESNETS.STAGE_WITH_DCN": 4,
    "INPUT.PIXEL_MEAN": 3,
    "INPUT.PIXEL_STD": 3,
}
# Sections with IoU thresholds for matched boxes and for background.
MATCHER_SECTIONS = ("MODEL.RPN", "MODEL.ROI_HEADS")
# Unused keys and sections, and why they are unused. They must keep their defaults.
UNUSED = {
    "MODEL.DEVICE": "the device is chosen where the network is used, by --device or device=",
    "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM": "a mask head has no such layer",
    "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM": "a keypoint head has no such layer",
    "MODEL.FBNET": "FBNet is not supported",
    "TEST.EXPECTED_RESULTS": "results are not compared with expected ones",
    "TEST.EXPECTED_RESULTS_SIGMA_TOL": "results are not compared with expected ones",
    "PATHS_CATALOG": "DATASETS contains the paths of the data",
    "AMP_VERBOSE": "mixed precision logs nothing",
}


def check_values(cfg: Any) -> None:
    """Checks lengths of tuples, IoU thresholds and unused keys.

    Raises:
        ConfigError: a tuple is too short or long, thresholds do not ascend, or an unused key does
            not have its default; the message names the key.
    """
    defaults = load_config()
    for key, reason in UNUSED.items():
        _check_default(key, OmegaConf.select(cfg, key), OmegaConf.select(defaults, key), reason)
    for key, length in LENGTHS.items():
        if len(OmegaConf.select(cfg, key)) != length:
            got = list(OmegaConf.select(cfg, key))
            raise ConfigError(f"{key}: expected {length} values, got {got}")
    for section in MATCHER_SECTIONS:
        part = OmegaConf.select(cfg, section)
        if not 0 <= part.BG_IOU_THRESHOLD <= part.FG_IOU_THRESHOLD:
            raise ConfigError(
                f"{section}.BG_IOU_THRESHOLD, {section}.FG_IOU_THRESHOLD: expected 0 or more, and "
                f"ascending, got {part.BG_IOU_THRESHOLD} and {part.FG_IOU_THRESHOLD}"
            )


def _check_default(key: str, value: Any, default: Any, reason: str) -> None:
    if OmegaConf.is_dict(default):
        for name in default:
            _check_default(f"{key}.{name}", value[name], default[name], reason)
    elif value != default:
        raise ConfigError(f"{key}: not used, because {reason}: expected {default}, got {value}")
