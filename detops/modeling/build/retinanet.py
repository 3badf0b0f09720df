"""Builder of RetinaNets."""

from typing import Any

from ...ops import BoxCoder
from ..backbone import Backbone
from ..convention import get_convention
from ..matcher import Matcher
from ..rpn.retinanet import RetinaNet, RetinaNetHead
from ..rpn.retinanet.inference import RetinaNetPostProcessor
from ..rpn.retinanet.loss import RetinaNetLoss
from .anchors import build_anchors, sizes_per_level


def build_retinanet(cfg: Any, backbone: Backbone) -> RetinaNet:
    """Builds the anchors, head, loss and post-processor that MODEL.RETINANET describes."""
    retina = cfg.MODEL.RETINANET
    scales = [
        retina.OCTAVE ** (i / retina.SCALES_PER_OCTAVE) for i in range(retina.SCALES_PER_OCTAVE)
    ]
    sizes = [
        tuple(size * scale for size in level for scale in scales)
        for level in sizes_per_level(retina.ANCHOR_SIZES)
    ]
    anchors, per_position = build_anchors(
        cfg, "RETINANET", "ANCHOR_STRIDES", sizes, backbone.levels
    )
    box_coder = BoxCoder(tuple(retina.BBOX_REG_WEIGHTS))
    return RetinaNet(
        anchor_generator=anchors,
        head=RetinaNetHead(
            in_channels=backbone.out_channels,
            num_anchors=per_position,
            num_classes=retina.NUM_CLASSES - 1,
            num_convs=retina.NUM_CONVS,
            prior_prob=retina.PRIOR_PROB,
        ),
        loss=RetinaNetLoss(
            matcher=Matcher(retina.FG_IOU_THRESHOLD, retina.BG_IOU_THRESHOLD, True),
            box_coder=box_coder,
            alpha=retina.LOSS_ALPHA,
            gamma=retina.LOSS_GAMMA,
            beta=retina.BBOX_REG_BETA,
            regress_norm=retina.BBOX_REG_WEIGHT,
        ),
        post_processor=RetinaNetPostProcessor(
            box_coder=box_coder,
            score_thresh=retina.INFERENCE_TH,
            pre_nms_top_n=retina.PRE_NMS_TOP_N,
            nms_thresh=retina.NMS_TH,
            detections_per_img=cfg.TEST.DETECTIONS_PER_IMG,
            convention=get_convention(cfg),
        ),
    )
