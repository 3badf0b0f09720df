"""Minimal detectors of the shipped configs, and images for them."""

import logging
from functools import cache
from pathlib import Path

import pytest
import torch

import detops
from detops.config import load_config
from detops.modeling import build_detection_model
from detops.modeling.backbone import resnet

FOLDER = Path(detops.__file__).parent / "configs"
CONFIGS = sorted(path.stem for path in FOLDER.glob("*.yaml") if path.stem != "defaults")
SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 8, "MODEL.RESNETS.RES2_OUT_CHANNELS", 8,
    "MODEL.RESNETS.WIDTH_PER_GROUP", 4, "MODEL.GROUP_NORM.NUM_GROUPS", 4,
    "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 16, "MODEL.ROI_BOX_HEAD.CONV_HEAD_DIM", 8,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3, "MODEL.RETINANET.NUM_CLASSES", 3,
    "MODEL.ROI_MASK_HEAD.CONV_LAYERS", (8,), "MODEL.ROI_KEYPOINT_HEAD.CONV_LAYERS", (8,),
    "MODEL.RPN.PRE_NMS_TOP_N_TEST", 100, "MODEL.RPN.POST_NMS_TOP_N_TEST", 50,
    "MODEL.RPN.FPN_POST_NMS_TOP_N_TEST", 50, "MODEL.RETINANET.NUM_CONVS", 1,
    "MODEL.ROI_HEADS.SCORE_THRESH", 0.0, "MODEL.RETINANET.INFERENCE_TH", 0.0,
    "INPUT.MIN_SIZE_TEST", 64, "INPUT.MAX_SIZE_TEST", 96,
    "INPUT.MIN_SIZE_TRAIN", (64,), "INPUT.MAX_SIZE_TRAIN", 96,
]  # fmt: skip


def small_overrides(name):
    """Returns overrides for a minimal detector with the structure of the config."""
    cfg = load_config(FOLDER / f"{name}.yaml")
    channels = 8 if "FPN" in cfg.MODEL.BACKBONE.CONV_BODY else 32
    groups = min(2, cfg.MODEL.RESNETS.NUM_GROUPS)
    return [
        *SMALL, "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", channels, "MODEL.RESNETS.NUM_GROUPS", groups
    ]  # fmt: skip


# Together they have every layer of all configs, and every convention.
DETECTORS = (
    "detectron2_mask_rcnn_R_50_FPN",
    "faster_rcnn_R_50_FPN_Xconv1fc_gn_1x",
    "faster_rcnn_mdconv_R_50_FPN_1x",
    "keypoint_rcnn_R_50_FPN_1x",
    "mask_rcnn_R_50_C4_1x",
    "mask_rcnn_R_50_FPN_1x",
    "retinanet_R_50_FPN_1x",
    "rpn_R_50_FPN_1x",
    "torchvision_mask_rcnn_R_50_FPN",
    "tree_crowns",
)


def detectors(*quick):
    """Returns DETECTORS as parameters of a test: all but a few are exhaustive."""
    assert set(quick) <= set(DETECTORS)
    exhaustive = pytest.mark.exhaustive
    return [pytest.param(name, marks=() if name in quick else exhaustive) for name in DETECTORS]


def small_detector(name, overrides=()):
    """Returns a shared detector. Its layers keep what oneDNN packed for them, if it was enabled."""
    return _small_detector(name, overrides, torch.backends.mkldnn.enabled)


@cache
def _small_detector(name, overrides, onednn):
    torch.manual_seed(0)
    cfg = load_config(FOLDER / f"{name}.yaml", [*small_overrides(name), *overrides])
    with pytest.MonkeyPatch.context() as patch:
        for depth in resnet.STAGES:
            patch.setitem(resnet.STAGES, depth, (1, 1, 1, 1))
        return build_detection_model(cfg).eval()


def noise_images(*sizes):
    """Returns images of noise, and one of NaN without detections."""
    generator = torch.Generator().manual_seed(1)
    noise = [torch.rand(3, *size, generator=generator) for size in sizes]
    return [*noise, torch.full((3, *sizes[0]), torch.nan)]


@pytest.fixture
def single_steps(monkeypatch):
    monkeypatch.setattr(logging.getLogger("torch"), "disabled", True)
    # oneDNN rounds fused steps differently from a graph of single steps.
    with torch.backends.mkldnn.flags(enabled=False), torch.no_grad():
        yield
    torch._dynamo.reset()


# Tolerances for sums in another order; boxes are in pixels of the image.
TOLERANCES = {"boxes": {"atol": 1e-3, "rtol": 0}}


def assert_same_detections(found, expected):
    assert set(found) == set(expected)
    for key, value in expected.items():
        assert found[key].dtype == value.dtype and found[key].shape == value.shape, key
        if value.is_floating_point():
            tolerances = TOLERANCES.get(key, {})
            torch.testing.assert_close(found[key], value, equal_nan=True, **tolerances)
        elif key == "masks":  # pixels on the edge may differ
            assert (found[key] != value).sum() <= 1e-3 * value.numel()
        else:
            assert torch.equal(found[key], value), key
