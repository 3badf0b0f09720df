"""Builder of the region proposal network."""

from typing import Any

from ...config import ConfigError
from ...ops import BoxCoder
from ..backbone import Backbone
from ..balanced_sampler import BalancedSampler
from ..convention import get_convention
from ..matcher import Matcher
from ..registry import RPN_HEADS
from ..rpn import RPN
from .anchors import build_anchors, sizes_per_level


def build_rpn(cfg: Any, backbone: Backbone) -> RPN:
    """Builds the region proposal network that MODEL.RPN describes."""
    rpn = cfg.MODEL.RPN
    if rpn.USE_FPN:
        sizes = sizes_per_level(rpn.ANCHOR_SIZES)
    elif backbone.levels > 1 or len(rpn.ANCHOR_STRIDE) != 1:
        raise ConfigError(
            f"MODEL.RPN.USE_FPN: expected True with {backbone.levels} levels and "
            f"{len(rpn.ANCHOR_STRIDE)} MODEL.RPN.ANCHOR_STRIDE, got False"
        )
    elif not all(isinstance(s, (int, float)) for s in rpn.ANCHOR_SIZES):
        raise ConfigError(
            "MODEL.RPN.ANCHOR_SIZES: expected numbers if MODEL.RPN.USE_FPN is False, "
            f"got {list(rpn.ANCHOR_SIZES)}"
        )
    else:
        sizes = [tuple(rpn.ANCHOR_SIZES)]
    anchors, per_position = build_anchors(cfg, "RPN", "ANCHOR_STRIDE", sizes, backbone.levels)
    return RPN(
        anchor_generator=anchors,
        head=RPN_HEADS[rpn.RPN_HEAD](backbone.out_channels, per_position),
        matcher=Matcher(rpn.FG_IOU_THRESHOLD, rpn.BG_IOU_THRESHOLD, True),
        sampler=BalancedSampler(rpn.BATCH_SIZE_PER_IMAGE, rpn.POSITIVE_FRACTION),
        box_coder=BoxCoder(),
        pre_nms_top_n=(rpn.PRE_NMS_TOP_N_TRAIN, rpn.PRE_NMS_TOP_N_TEST),
        post_nms_top_n=(rpn.POST_NMS_TOP_N_TRAIN, rpn.POST_NMS_TOP_N_TEST),
        fpn_post_nms_top_n=(rpn.FPN_POST_NMS_TOP_N_TRAIN, rpn.FPN_POST_NMS_TOP_N_TEST),
        fpn_post_nms_per_batch=rpn.FPN_POST_NMS_PER_BATCH,
        nms_thresh=rpn.NMS_THRESH,
        min_size=rpn.MIN_SIZE,
        final=cfg.MODEL.RPN_ONLY,
        convention=get_convention(cfg),
    )
