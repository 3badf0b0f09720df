"""Pooling of the heads on regions of interest."""

from typing import Any

from ...config import ConfigError
from ..backbone.fpn import FPN
from ..poolers import Pooler


def build_pooler(cfg: Any, section: str, fpn: FPN) -> Pooler:
    """The pooler that ``MODEL.<section>`` describes."""
    head, box = cfg.MODEL[section], cfg.MODEL.ROI_BOX_HEAD
    if len(head.POOLER_SCALES) > fpn.levels:
        raise ConfigError(
            f"MODEL.{section}.POOLER_SCALES: expected at most {fpn.levels}, one per level, "
            f"got {len(head.POOLER_SCALES)}"
        )
    return Pooler(
        head.POOLER_RESOLUTION,
        list(head.POOLER_SCALES),
        head.POOLER_SAMPLING_RATIO,
        box.POOLER_CANONICAL_SCALE,
        box.POOLER_CANONICAL_LEVEL,
    )
