"""Builder of the heads on regions of interest."""

from typing import Any

from ..backbone import Backbone
from ..roi_heads import RoIHeads
from .box import build_box_head
from .keypoint import build_keypoint_head
from .mask import build_mask_head


def build_roi_heads(cfg: Any, backbone: Backbone) -> RoIHeads:
    """Builds the box head, and those that MODEL.MASK_ON and MODEL.KEYPOINT_ON enable."""
    box = build_box_head(cfg, backbone)
    return RoIHeads(
        box=box,
        mask=build_mask_head(cfg, backbone, box) if cfg.MODEL.MASK_ON else None,
        keypoint=build_keypoint_head(cfg, backbone, box) if cfg.MODEL.KEYPOINT_ON else None,
    )
