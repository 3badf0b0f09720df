"""maskrcnn-benchmark YAML files with their published keys and values, block by block."""

HEADER = """\
MODEL:
  META_ARCHITECTURE: "GeneralizedRCNN"
  WEIGHT: "catalog://ImageNetPretrained/{weight}"
"""
BODY = """\
  BACKBONE:
    CONV_BODY: "{body}"
"""
CHANNELS = """\
  RESNETS:
    BACKBONE_OUT_CHANNELS: 256
"""
X101 = """\
    STRIDE_IN_1X1: False
    NUM_GROUPS: 32
    WIDTH_PER_GROUP: 8
"""
DCN = """\
    STAGE_WITH_DCN: (False, True, True, True)
    WITH_MODULATED_DCN: {modulated}
    DEFORMABLE_GROUPS: 1
"""
GN = """\
    STRIDE_IN_1X1: False
    TRANS_FUNC: "BottleneckWithGN"
    STEM_FUNC: "StemWithGN"
  FPN:
    USE_GN: True # use GN for FPN
"""
RPN = """\
  RPN:
    USE_FPN: True
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    PRE_NMS_TOP_N_TRAIN: 2000
    PRE_NMS_TOP_N_TEST: 1000
    POST_NMS_TOP_N_TEST: 1000
    FPN_POST_NMS_TOP_N_TEST: 1000
"""
HEADS = """\
  ROI_HEADS:
    USE_FPN: True
"""
BOX = """\
  ROI_BOX_HEAD:
    POOLER_RESOLUTION: 7
    POOLER_SCALES: (0.25, 0.125, 0.0625, 0.03125)
    POOLER_SAMPLING_RATIO: 2
    FEATURE_EXTRACTOR: "FPN2MLPFeatureExtractor"
    PREDICTOR: "FPNPredictor"
"""
XCONV = BOX.replace("FPN2MLP", "FPNXconv1fc") + "    CONV_HEAD_DIM: 256\n    NUM_STACKED_CONVS: 4\n"
USE_GN = "    USE_GN: True # use GN for this head\n"
C4_RPN = """\
  RPN:
    PRE_NMS_TOP_N_TEST: 6000
    POST_NMS_TOP_N_TEST: 1000
"""
C4_MASK = """\
  ROI_MASK_HEAD:
    PREDICTOR: "MaskRCNNC4Predictor"
    SHARE_BOX_FEATURE_EXTRACTOR: True
  MASK_ON: True
"""
MASK = """\
  ROI_MASK_HEAD:
    POOLER_SCALES: (0.25, 0.125, 0.0625, 0.03125)
    FEATURE_EXTRACTOR: "MaskRCNNFPNFeatureExtractor"
    PREDICTOR: "MaskRCNNC4Predictor"
    POOLER_RESOLUTION: 14
    POOLER_SAMPLING_RATIO: 2
    RESOLUTION: 28
    SHARE_BOX_FEATURE_EXTRACTOR: False
{gn}  MASK_ON: True
"""
KEYPOINTS = """\
    NUM_CLASSES: 2
  ROI_KEYPOINT_HEAD:
    POOLER_SCALES: (0.25, 0.125, 0.0625, 0.03125)
    FEATURE_EXTRACTOR: "KeypointRCNNFeatureExtractor"
    PREDICTOR: "KeypointRCNNPredictor"
    POOLER_RESOLUTION: 14
    POOLER_SAMPLING_RATIO: 2
    RESOLUTION: 56
    SHARE_BOX_FEATURE_EXTRACTOR: False
  KEYPOINT_ON: True
"""
KEYPOINT_DATA = """\
DATASETS:
  TRAIN: ("keypoints_coco_2014_train", "keypoints_coco_2014_valminusminival",)
  TEST: ("keypoints_coco_2014_minival",)
INPUT:
  MIN_SIZE_TRAIN: (640, 672, 704, 736, 768, 800)
"""
RETINANET = """\
  RPN_ONLY: True
  RETINANET_ON: True
  BACKBONE:
    CONV_BODY: "R-50-FPN-RETINANET"
  RESNETS:
    BACKBONE_OUT_CHANNELS: 256
  RPN:
    USE_FPN: True
    FG_IOU_THRESHOLD: 0.5
    BG_IOU_THRESHOLD: 0.4
    ANCHOR_STRIDE: (4, 8, 16, 32, 64)
    PRE_NMS_TOP_N_TRAIN: 2000
    PRE_NMS_TOP_N_TEST: 1000
    POST_NMS_TOP_N_TEST: 1000
    FPN_POST_NMS_TOP_N_TEST: 1000
  ROI_HEADS:
    USE_FPN: True
    BATCH_SIZE_PER_IMAGE: 256
"""
RETINANET_REST = """\
  RETINANET:
    SCALES_PER_OCTAVE: 3
    STRADDLE_THRESH: -1
{more}    FG_IOU_THRESHOLD: 0.5
    BG_IOU_THRESHOLD: 0.4
"""
COCO = """\
DATASETS:
  TRAIN: ("coco_2014_train", "coco_2014_valminusminival")
  TEST: ("coco_2014_minival",)
"""
INPUT = """\
INPUT:
  MIN_SIZE_TRAIN: (800,)
  MAX_SIZE_TRAIN: 1333
  MIN_SIZE_TEST: 800
  MAX_SIZE_TEST: 1333
"""
LOADER = """\
DATALOADER:
  SIZE_DIVISIBILITY: 32
"""
SOLVER = """\
SOLVER:
  BASE_LR: {rate}
  WEIGHT_DECAY: 0.0001
  STEPS: ({steps})
  MAX_ITER: {last}
"""
SCHEDULE_1X = SOLVER.format(rate=0.02, steps="60000, 80000", last=90000)
SCHEDULE_3X = SOLVER.format(rate=0.02, steps="210000, 250000", last=270000)
HALF_BATCH = SOLVER.format(rate=0.01, steps="120000, 160000", last=180000) + "  IMS_PER_BATCH: 8\n"
BATCH = "  IMS_PER_BATCH: 16\nTEST:\n  IMS_PER_BATCH: 8\n"
TEST_TIME = """\
TEST:
  BBOX_AUG:
    ENABLED: True
    H_FLIP: True
    SCALES: (400, 500, 600, 700, 900, 1000, 1100, 1200)
    MAX_SIZE: 2000
    SCALE_H_FLIP: True
"""


def _fpn(body: str, weight: str, resnets: str = "", heads: str = BOX, rest: str = "") -> str:
    """Returns everything under MODEL for a network with a pyramid and a box head."""
    header = HEADER.format(weight=weight) + BODY.format(body=body)
    return header + CHANNELS + resnets + RPN + HEADS + heads + rest


def _dcn(modulated: bool) -> str:
    return DCN.format(modulated=modulated)


MSRA50, MSRA101, FAIR_WEIGHTS = "MSRA/R-50", "MSRA/R-101", "FAIR/20171220/X-101-32x8d"
R50 = _fpn("R-50-FPN", MSRA50)
R101 = _fpn("R-101-FPN", MSRA101)
RX101 = _fpn("R-101-FPN", FAIR_WEIGHTS, X101)
C4 = HEADER.format(weight=MSRA50) + C4_RPN
GN50 = _fpn("R-50-FPN", "MSRA/R-50-GN", GN, BOX + USE_GN)
GN50_XCONV = _fpn("R-50-FPN", "MSRA/R-50-GN", GN, XCONV + USE_GN)
PLAIN_MASK, GN_MASK = MASK.format(gn=""), MASK.format(gn=USE_GN)


def _scratch(model: str) -> str:
    """Returns a model that loads no weights and trains every stage."""
    model = model.replace("catalog://ImageNetPretrained/MSRA/R-50-GN", "")
    body = BODY.format(body="R-50-FPN")
    return model.replace(body, body + "    FREEZE_CONV_BODY_AT: 0 # finetune all layers\n")


# Keyed by file name.
CONFIGS = {
    "e2e_faster_rcnn_R_50_C4_1x": C4 + COCO + HALF_BATCH,
    "e2e_faster_rcnn_R_50_FPN_1x": R50 + COCO + LOADER + SCHEDULE_1X,
    "e2e_faster_rcnn_R_101_FPN_1x": R101 + COCO + LOADER + SCHEDULE_1X,
    "e2e_faster_rcnn_X_101_32x8d_FPN_1x": RX101 + COCO + LOADER + HALF_BATCH,
    "e2e_mask_rcnn_R_50_C4_1x": C4 + C4_MASK + COCO + HALF_BATCH,
    "e2e_mask_rcnn_R_50_FPN_1x": R50 + PLAIN_MASK + COCO + LOADER + SCHEDULE_1X,
    "e2e_mask_rcnn_R_101_FPN_1x": R101 + PLAIN_MASK + COCO + LOADER + SCHEDULE_1X,
    "e2e_mask_rcnn_X_101_32x8d_FPN_1x": RX101 + PLAIN_MASK + COCO + LOADER + HALF_BATCH,
    "e2e_keypoint_rcnn_R_50_FPN_1x": R50 + KEYPOINTS + KEYPOINT_DATA + LOADER + SCHEDULE_1X,
    "rpn_R_50_C4_1x": HEADER.format(weight=MSRA50)
    + "  RPN_ONLY: True\n"
    + C4_RPN.replace("6000", "12000").replace("1000", "2000")
    + COCO
    + SCHEDULE_1X,
    "rpn_R_50_FPN_1x": HEADER.format(weight=MSRA50)
    + "  RPN_ONLY: True\n"
    + BODY.format(body="R-50-FPN")
    + CHANNELS
    + "  RPN:\n    USE_FPN: True\n    ANCHOR_STRIDE: (4, 8, 16, 32, 64)\n"
    + "    PRE_NMS_TOP_N_TEST: 1000\n    POST_NMS_TOP_N_TEST: 2000\n"
    + "    FPN_POST_NMS_TOP_N_TEST: 2000\n"
    + COCO
    + LOADER
    + SCHEDULE_1X,
    "retinanet/retinanet_R-50-FPN_1x": HEADER.format(weight=MSRA50)
    + RETINANET
    + BOX
    + RETINANET_REST.format(more="")
    + COCO
    + INPUT
    + LOADER
    + HALF_BATCH.replace("0.01", "0.005"),
    "retinanet/retinanet_R-50-FPN_P5_1x": HEADER.format(weight=MSRA50)
    + RETINANET
    + BOX
    + RETINANET_REST.format(more="    USE_C5: False\n")
    + COCO
    + INPUT
    + LOADER
    + HALF_BATCH.replace("0.01", "0.005"),
    "dcn/e2e_faster_rcnn_dconv_R_50_FPN_1x": INPUT
    + _fpn("R-50-FPN", MSRA50, _dcn(False))
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "dcn/e2e_faster_rcnn_mdconv_R_50_FPN_1x": INPUT
    + _fpn("R-50-FPN", MSRA50, _dcn(True))
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "dcn/e2e_mask_rcnn_mdconv_R_50_FPN_1x": INPUT
    + _fpn("R-50-FPN", MSRA50, _dcn(True), BOX, PLAIN_MASK)
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_1x_gn": INPUT
    + GN50
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "gn_baselines/e2e_faster_rcnn_R_50_FPN_Xconv1fc_1x_gn": INPUT
    + GN50_XCONV
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "gn_baselines/e2e_mask_rcnn_R_50_FPN_1x_gn": INPUT
    + GN50
    + GN_MASK
    + COCO
    + LOADER
    + SCHEDULE_1X
    + BATCH,
    "gn_baselines/scratch_e2e_faster_rcnn_R_50_FPN_3x_gn": INPUT
    + _scratch(GN50)
    + COCO
    + LOADER
    + SCHEDULE_3X
    + BATCH,
    "gn_baselines/scratch_e2e_mask_rcnn_R_50_FPN_Xconv1fc_3x_gn": INPUT
    + _scratch(GN50_XCONV)
    + GN_MASK
    + COCO
    + LOADER
    + SCHEDULE_3X
    + BATCH,
    "pascal_voc/e2e_faster_rcnn_R_50_C4_1x_4_gpu_voc": HEADER.format(weight=MSRA50)
    + C4_RPN.replace(" 1000", " 300")
    + "    ANCHOR_SIZES: (128, 256, 512)\n  ROI_BOX_HEAD:\n    NUM_CLASSES: 21\n"
    + 'DATASETS:\n  TRAIN: ("voc_2007_train", "voc_2007_val")\n  TEST: ("voc_2007_test",)\n'
    + SOLVER.format(rate=0.004, steps="12500, ", last=17500)
    + "  IMS_PER_BATCH: 4\nTEST:\n  IMS_PER_BATCH: 4\n",
    "cityscapes/e2e_mask_rcnn_R_50_FPN_1x": R50
    + "    NUM_CLASSES: 9\n"
    + PLAIN_MASK
    + 'DATASETS:\n  TRAIN: ("cityscapes_fine_instanceonly_seg_train_cocostyle",)\n'
    + '  TEST: ("cityscapes_fine_instanceonly_seg_val_cocostyle",)\n'
    + LOADER
    + SOLVER.format(rate=0.01, steps="18000,", last=24000)
    + "  IMS_PER_BATCH: 8\n",
    "test_time_aug/e2e_mask_rcnn_R_50_FPN_1x": R50
    + PLAIN_MASK
    + COCO
    + LOADER
    + SCHEDULE_1X
    + TEST_TIME,
}
