"""detectron2 detectors with random weights that find many objects in some photographs."""

import math
from functools import cache

import numpy as np
import reference_detectron2 as reference
import torch
from PIL import Image

CLASSES = 5
SETTINGS = {
    "small": 144, "large": 200, "anchors": (12, 24, 48, 96, 160), "before": 300, "after": 120,
    "canonical": 40, "score": 0.1, "most": 60, "classes": CLASSES,
}  # fmt: skip
# The same settings as overrides of our configs.
OVERRIDES = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 32,
    "MODEL.RESNETS.WIDTH_PER_GROUP", 8, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 32,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 48, "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (32,) * 4,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", CLASSES + 1, "MODEL.RETINANET.NUM_CLASSES", CLASSES + 1,
    "MODEL.RPN.ANCHOR_SIZES", SETTINGS["anchors"],
    "MODEL.RETINANET.ANCHOR_SIZES", SETTINGS["anchors"],
    "MODEL.RPN.PRE_NMS_TOP_N_TEST", 300, "MODEL.RPN.POST_NMS_TOP_N_TEST", 120,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 120, "MODEL.ROI_BOX_HEAD.POOLER_CANONICAL_SCALE", 40,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.1, "MODEL.RETINANET.INFERENCE_TH", 0.1,
    "MODEL.ROI_HEADS.DETECTIONS_PER_IMG", 60, "TEST.DETECTIONS_PER_IMG", 60,
    "INPUT.MIN_SIZE_TEST", 144, "INPUT.MAX_SIZE_TEST", 200,
]  # fmt: skip


def photographs():
    """Returns three photographs: one limited by its longer side, one enlarged, and one tall."""
    parts = (
        ("docs/demo.jpg", (60, 330, 660, 680)),
        ("detops/assets/tree_crowns/val_florida.jpg", (10, 20, 131, 147)),
        ("detops/assets/tree_crowns/val.jpg", (0, 100, 369, 545)),
    )
    return [np.array(Image.open(file).convert("RGB").crop(box)) for file, box in parts]


@cache
def case(kind):
    """Returns weights of a kind, and the detections of detectron2 in the photographs."""
    state = random_state(kind)
    detect = reference.retinanet if kind == "retinanet" else reference.rcnn
    with torch.no_grad():
        detect(state, photographs(), SETTINGS, learn=True)
        return state, detect(state, photographs(), SETTINGS)


def random_state(kind, classes=5, *, stem=16, res2=32, width=8, fpn=32, fc=48):
    """Returns weights of a "faster_rcnn", "mask_rcnn" or "retinanet" by detectron2 names."""
    generator = torch.Generator().manual_seed(0)
    state = {}

    def layer(name, *shape, bias=True):
        fan_in = math.prod(shape[1:])
        state[f"{name}.weight"] = torch.randn(shape, generator=generator) * (2 / fan_in) ** 0.5
        if bias:
            state[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.1

    def normed(name, *shape, gain=1.0):
        layer(name, *shape, bias=False)
        norm = f"{name}.norm"
        state[f"{norm}.weight"] = (torch.rand(shape[0], generator=generator) + 0.5) * gain
        state[f"{norm}.bias"] = torch.randn(shape[0], generator=generator) * 0.2
        state[f"{norm}.running_mean"] = torch.zeros(shape[0])
        state[f"{norm}.running_var"] = torch.ones(shape[0])

    root, inputs, channels = "backbone.bottom_up", stem, []
    normed(f"{root}.stem.conv1", stem, 3, 7, 7)
    for k, (stage, blocks) in enumerate(reference.BLOCKS.items()):
        outputs, inner = res2 * 2**k, width * 2**k
        for i in range(blocks):
            name = f"{root}.{stage}.{i}"
            if i == 0:
                normed(f"{name}.shortcut", outputs, inputs, 1, 1)
            normed(f"{name}.conv1", inner, inputs, 1, 1)
            normed(f"{name}.conv2", inner, inner, 3, 3)
            # Shortcuts outweigh the residual branch, so rounding differences do not grow.
            normed(f"{name}.conv3", outputs, inner, 1, 1, gain=0.2)
            inputs = outputs
        channels.append(outputs)
    retina = kind == "retinanet"
    for level in range(3 if retina else 2, 6):
        layer(f"backbone.fpn_lateral{level}", fpn, channels[level - 2], 1, 1)
        layer(f"backbone.fpn_output{level}", fpn, fpn, 3, 3)
    if retina:
        layer("backbone.top_block.p6", fpn, channels[-1], 3, 3)
        layer("backbone.top_block.p7", fpn, fpn, 3, 3)
        for subnet in ("cls", "bbox"):
            for i in range(0, 8, 2):
                layer(f"head.{subnet}_subnet.{i}", fpn, fpn, 3, 3)
        layer("head.cls_score", 9 * classes, fpn, 3, 3)
        layer("head.bbox_pred", 9 * 4, fpn, 3, 3)
        return state
    layer("proposal_generator.rpn_head.conv", fpn, fpn, 3, 3)
    layer("proposal_generator.rpn_head.objectness_logits", 3, fpn, 1, 1)
    layer("proposal_generator.rpn_head.anchor_deltas", 12, fpn, 1, 1)
    layer("roi_heads.box_head.fc1", fc, fpn * 49)
    layer("roi_heads.box_head.fc2", fc, fc)
    layer("roi_heads.box_predictor.cls_score", classes + 1, fc)
    layer("roi_heads.box_predictor.bbox_pred", 4 * classes, fc)
    if kind == "mask_rcnn":
        for i in range(1, 5):
            layer(f"roi_heads.mask_head.mask_fcn{i}", fpn, fpn, 3, 3)
        layer("roi_heads.mask_head.deconv", fpn, fpn, 2, 2)
        layer("roi_heads.mask_head.predictor", classes, fpn, 1, 1)
    return state
