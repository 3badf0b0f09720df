"""Builder of the poolers of the heads on regions of interest."""

from typing import Any

from ...config import ConfigError
from ..backbone import Backbone
from ..convention import get_convention
from ..poolers import Pooler


def build_pooler(cfg: Any, backbone: Backbone, section: str) -> Pooler:
    """Builds the pooler of the head that a section of MODEL describes, such as ROI_BOX_HEAD."""
    head, box = cfg.MODEL[section], cfg.MODEL.ROI_BOX_HEAD
    if not 1 <= len(head.POOLER_SCALES) <= backbone.levels:
        raise ConfigError(
            f"MODEL.{section}.POOLER_SCALES: expected 1 to {backbone.levels}, one per level, "
            f"got {len(head.POOLER_SCALES)}"
        )
    return Pooler(
        head.POOLER_RESOLUTION,
        list(head.POOLER_SCALES),
        head.POOLER_SAMPLING_RATIO,
        box.POOLER_CANONICAL_SCALE,
        box.POOLER_CANONICAL_LEVEL,
        get_convention(cfg),
    )
