"""Anchors, and the region proposal network."""

from collections.abc import Sequence
from typing import Any

from ...config import ConfigError
from ...ops import BoxCoder
from ..backbone import Backbone
from ..balanced_sampler import BalancedSampler
from ..matcher import Matcher
from ..registry import RPN_HEADS
from ..rpn import RPN, AnchorGenerator


def build_anchors(
    cfg: Any, section: str, stride_key: str, levels: int, scales: Sequence[float] = (1.0,)
) -> tuple[AnchorGenerator, int]:
    """The anchors of MODEL.RPN or MODEL.RETINANET, and how many there are per position.

    Args:
        cfg: the config.
        section: ``RPN`` or ``RETINANET``.
        stride_key: what the section calls its strides.
        levels: feature levels there are.
        scales: each size stands for itself times each of these.
    """
    part, name = cfg.MODEL[section], f"MODEL.{section}"
    listed = [(s,) if isinstance(s, (int, float)) else tuple(s) for s in part.ANCHOR_SIZES]
    sizes = [tuple(size * scale for size in level for scale in scales) for level in listed]
    strides = list(part[stride_key])
    if len(sizes) != levels or len(strides) != levels:
        raise ConfigError(
            f"{name}.ANCHOR_SIZES, {name}.{stride_key}: expected one entry per level "
            f"({levels}), got {len(sizes)} and {len(strides)}"
        )
    anchors = AnchorGenerator(
        sizes, list(part.ASPECT_RATIOS), strides, part.STRADDLE_THRESH, part.STRIDE_FROM_SIZE
    )
    counts = set(anchors.num_anchors())
    if len(counts) > 1:
        raise ConfigError(
            f"{name}.ANCHOR_SIZES: expected as many sizes on every level, for the levels share "
            f"a head, got {listed}"
        )
    return anchors, counts.pop()


def build_rpn(cfg: Any, backbone: Backbone) -> RPN:
    """Anchors, head and selection of the region proposal network."""
    rpn = cfg.MODEL.RPN
    anchors, per_position = build_anchors(cfg, "RPN", "ANCHOR_STRIDE", backbone.levels)
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
    )
