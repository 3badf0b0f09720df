"""Helpers of the mask and the keypoint head."""

from typing import Any

from torch import nn

from ...config import ConfigError
from ..roi_heads.box import BoxHead


def shared_extractor(cfg: Any, section: str, box: BoxHead) -> Any:
    """Returns the box head's feature extractor if other heads can be built on it."""
    if not hasattr(box.feature_extractor, "resolution"):
        raise ConfigError(
            f"MODEL.{section}.SHARE_BOX_FEATURE_EXTRACTOR: expected False, because "
            f"{cfg.MODEL.ROI_BOX_HEAD.FEATURE_EXTRACTOR} returns vectors, got True"
        )
    return box.feature_extractor


def check_resolution(cfg: Any, section: str, extractor: Any, predictor: nn.Module) -> None:
    """Checks that ``MODEL.<section>.RESOLUTION`` is the resolution that the parts produce."""
    expected = extractor.resolution * predictor.scale
    if cfg.MODEL[section].RESOLUTION != expected:
        raise ConfigError(
            f"MODEL.{section}.RESOLUTION: expected {expected} (feature maps of "
            f"{extractor.resolution}, times {predictor.scale} in the predictor), "
            f"got {cfg.MODEL[section].RESOLUTION}"
        )
