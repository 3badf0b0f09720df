"""The valid ranges of the numbers in a config."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple


class Range(NamedTuple):
    """The finite numbers between two bounds.

    The bounds are included unless they are marked as exclusive.
    """

    minimum: float = -math.inf
    maximum: float = math.inf
    exclusive_minimum: bool = False
    exclusive_maximum: bool = False

    def __contains__(self, number: object) -> bool:
        """Returns whether the number is in the range; NaN and infinities never are."""
        if not isinstance(number, (int, float)) or not math.isfinite(number):
            return False
        above_minimum = number > self.minimum if self.exclusive_minimum else number >= self.minimum
        below_maximum = number < self.maximum if self.exclusive_maximum else number <= self.maximum
        return above_minimum and below_maximum

    def __str__(self) -> str:
        """Returns the range as errors describe it."""
        bounds = []
        if self.minimum > -math.inf:
            bounds.append(
                f"{'more than' if self.exclusive_minimum else 'at least'} {self.minimum:g}"
            )
        if self.maximum < math.inf:
            bounds.append(
                f"{'less than' if self.exclusive_maximum else 'at most'} {self.maximum:g}"
            )
        return " and ".join(bounds) or "a finite number"


# Every key whose value is a number, or a tuple of numbers.
RANGES: dict[Range, tuple[str, ...]] = {
    Range(): (
        "MODEL.BACKBONE.FREEZE_CONV_BODY_AT",
        "MODEL.RPN.STRADDLE_THRESH",
        "MODEL.RPN.NMS_THRESH",
        "MODEL.RPN.MIN_SIZE",
        "MODEL.ROI_HEADS.SCORE_THRESH",
        "MODEL.ROI_HEADS.NMS",
        "MODEL.ROI_BOX_HEAD.POOLER_CANONICAL_LEVEL",
        "MODEL.ROI_MASK_HEAD.POSTPROCESS_MASKS_THRESHOLD",
        "MODEL.RETINANET.STRADDLE_THRESH",
        "MODEL.RETINANET.INFERENCE_TH",
        "MODEL.RETINANET.NMS_TH",
        "INPUT.PIXEL_MEAN",
    ),
    # -1 leaves the choice to the other key.
    Range(-1): ("MODEL.GROUP_NORM.DIM_PER_GP", "MODEL.GROUP_NORM.NUM_GROUPS"),
    Range(0): (
        "SOLVER.PATIENCE",
        "MODEL.WEIGHT_BN_EPSILON",
        "MODEL.RPN.FG_IOU_THRESHOLD",
        "MODEL.RPN.BG_IOU_THRESHOLD",
        "MODEL.RPN.PRE_NMS_TOP_N_TRAIN",
        "MODEL.RPN.PRE_NMS_TOP_N_TEST",
        "MODEL.RPN.POST_NMS_TOP_N_TRAIN",
        "MODEL.RPN.POST_NMS_TOP_N_TEST",
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN",
        "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST",
        "MODEL.ROI_HEADS.FG_IOU_THRESHOLD",
        "MODEL.ROI_HEADS.BG_IOU_THRESHOLD",
        "MODEL.ROI_HEADS.DETECTIONS_PER_IMG",
        "MODEL.ROI_BOX_HEAD.NUM_STACKED_CONVS",
        "MODEL.ROI_BOX_HEAD.POOLER_SAMPLING_RATIO",
        "MODEL.ROI_MASK_HEAD.POOLER_SAMPLING_RATIO",
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_SAMPLING_RATIO",
        "MODEL.RETINANET.NUM_CONVS",
        "MODEL.RETINANET.PRE_NMS_TOP_N",
        "MODEL.RETINANET.FG_IOU_THRESHOLD",
        "MODEL.RETINANET.BG_IOU_THRESHOLD",
        "MODEL.RETINANET.BBOX_REG_BETA",
        "MODEL.RETINANET.LOSS_GAMMA",
        "MODEL.FBNET.SCALE_FACTOR",
        "MODEL.FBNET.DET_HEAD_LAST_SCALE",
        "MODEL.FBNET.DET_HEAD_STRIDE",
        "MODEL.FBNET.KPTS_HEAD_LAST_SCALE",
        "MODEL.FBNET.KPTS_HEAD_STRIDE",
        "MODEL.FBNET.MASK_HEAD_LAST_SCALE",
        "MODEL.FBNET.MASK_HEAD_STRIDE",
        "MODEL.FBNET.RPN_HEAD_BLOCKS",
        "INPUT.MIN_SIZE_TRAIN",
        "INPUT.MIN_SIZE_TEST",
        "INPUT.BRIGHTNESS",
        "INPUT.CONTRAST",
        "INPUT.SATURATION",
        "INPUT.CROP_MIN",
        "INPUT.CROP_MAX",
        "INPUT.TILE_SIZE",
        "DATALOADER.NUM_WORKERS",
        "DATALOADER.SIZE_DIVISIBILITY",
        "SOLVER.BASE_LR",
        "SOLVER.BIAS_LR_FACTOR",
        "SOLVER.MOMENTUM",
        "SOLVER.WEIGHT_DECAY",
        "SOLVER.WEIGHT_DECAY_BIAS",
        "SOLVER.GAMMA",
        "SOLVER.STEPS",
        "SOLVER.WARMUP_FACTOR",
        "SOLVER.WARMUP_ITERS",
        "SOLVER.CHECKPOINT_PERIOD",
        "SOLVER.TEST_PERIOD",
        "SOLVER.CLIP_GRADIENTS",
        "TEST.EXPECTED_RESULTS_SIGMA_TOL",
        "TEST.DETECTIONS_PER_IMG",
    ),
    Range(0, 0.5): ("INPUT.HUE",),
    Range(0, 1): (
        "MODEL.RPN.POSITIVE_FRACTION",
        "MODEL.ROI_HEADS.POSITIVE_FRACTION",
        "MODEL.RETINANET.LOSS_ALPHA",
        "INPUT.HORIZONTAL_FLIP_PROB_TRAIN",
        "INPUT.VERTICAL_FLIP_PROB_TRAIN",
        "TEST.TILE_NMS",
    ),
    Range(0, 1, exclusive_maximum=True): ("INPUT.TILE_OVERLAP", "SOLVER.EMA_DECAY"),
    Range(0, 1, exclusive_minimum=True, exclusive_maximum=True): ("MODEL.RETINANET.PRIOR_PROB",),
    Range(0, exclusive_minimum=True): (
        "MODEL.GROUP_NORM.EPSILON",
        "MODEL.RPN.ANCHOR_SIZES",
        "MODEL.RPN.ASPECT_RATIOS",
        "MODEL.ROI_HEADS.BBOX_REG_WEIGHTS",
        "MODEL.ROI_BOX_HEAD.POOLER_SCALES",
        "MODEL.ROI_MASK_HEAD.POOLER_SCALES",
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_SCALES",
        "MODEL.RETINANET.ANCHOR_SIZES",
        "MODEL.RETINANET.ASPECT_RATIOS",
        "MODEL.RETINANET.OCTAVE",
        "MODEL.RETINANET.BBOX_REG_WEIGHT",
        "MODEL.RETINANET.BBOX_REG_WEIGHTS",
        "INPUT.PIXEL_STD",
    ),
    Range(1): (
        "MODEL.RPN.ANCHOR_STRIDE",
        "MODEL.RPN.BATCH_SIZE_PER_IMAGE",
        "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE",
        "MODEL.ROI_BOX_HEAD.POOLER_RESOLUTION",
        "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM",
        "MODEL.ROI_BOX_HEAD.DILATION",
        "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM",
        "MODEL.ROI_BOX_HEAD.POOLER_CANONICAL_SCALE",
        "MODEL.ROI_MASK_HEAD.POOLER_RESOLUTION",
        "MODEL.ROI_MASK_HEAD.MLP_HEAD_DIM",
        "MODEL.ROI_MASK_HEAD.CONV_LAYERS",
        "MODEL.ROI_MASK_HEAD.RESOLUTION",
        "MODEL.ROI_MASK_HEAD.DILATION",
        "MODEL.ROI_KEYPOINT_HEAD.POOLER_RESOLUTION",
        "MODEL.ROI_KEYPOINT_HEAD.MLP_HEAD_DIM",
        "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS",
        "MODEL.ROI_KEYPOINT_HEAD.RESOLUTION",
        "MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES",
        "MODEL.RESNETS.NUM_GROUPS",
        "MODEL.RESNETS.WIDTH_PER_GROUP",
        "MODEL.RESNETS.RES5_DILATION",
        "MODEL.RESNETS.BACKBONE_OUT_CHANNELS",
        "MODEL.RESNETS.RES2_OUT_CHANNELS",
        "MODEL.RESNETS.STEM_OUT_CHANNELS",
        "MODEL.RESNETS.DEFORMABLE_GROUPS",
        "MODEL.RETINANET.ANCHOR_STRIDES",
        "MODEL.RETINANET.SCALES_PER_OCTAVE",
        "MODEL.FBNET.WIDTH_DIVISOR",
        "INPUT.MAX_SIZE_TRAIN",
        "INPUT.MAX_SIZE_TEST",
        "SOLVER.MAX_ITER",
        "SOLVER.IMS_PER_BATCH",
        "SOLVER.ACCUMULATE",
        "TEST.IMS_PER_BATCH",
        "TEST.BBOX_AUG.SCALES",
        "TEST.BBOX_AUG.MAX_SIZE",
    ),
    Range(1, 4): ("MODEL.RESNETS.NUM_STAGES",),
    Range(2): ("MODEL.ROI_BOX_HEAD.NUM_CLASSES", "MODEL.RETINANET.NUM_CLASSES"),
}
RANGE_BY_KEY = {key: range for range, keys in RANGES.items() for key in keys}


def violated_range(key: str, value: Any) -> Range | None:
    """Returns the range of the key if a number in the value, however nested, is outside it."""
    allowed = RANGE_BY_KEY.get(key)
    wrong = [] if allowed is None else [n for n in _numbers(value) if n not in allowed]
    if not wrong:
        return None
    infinite = any(isinstance(n, float) and not math.isfinite(n) for n in wrong)
    return Range() if infinite else allowed


def _numbers(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _numbers(item)
    else:
        yield value
