# SPDX-License-Identifier: MIT
"""Fine-tuning: weights trained on other classes, and matching of class names."""

import re
from types import SimpleNamespace

import pytest
import torch
import torchvision_networks as networks
from test_modeling_detector import small_detector

from detops.cli.options import CONFIGS
from detops.config import load_config
from detops.engine import CheckpointError, load_weights_into
from detops.engine.evaluate import matched_category_ids
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow

ROOT = CONFIGS[0].parent
BOX, MASK = "roi_heads.box.predictor", "roi_heads.mask.predictor.mask_fcn_logits"
CLASSES = "MODEL.ROI_BOX_HEAD.NUM_CLASSES"


@pytest.fixture(autouse=True)
def chdir_to_root(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)


def copy_state(model):
    return {key: value.clone() for key, value in model.state_dict().items()}


def changed_keys(before, model):
    return {key for key, value in model.state_dict().items() if not torch.equal(before[key], value)}


def test_loading_skips_predictors_of_other_classes():
    source = small_detector(seed=1, overrides=[CLASSES, 6])
    model = small_detector(seed=2)
    before = copy_state(model)
    with pytest.raises(CheckpointError, match=r"cls_score.weight is \[6, 32\], the model's is"):
        load_weights_into(model, source.state_dict())
    with pytest.raises(CheckpointError, match=r"cls_score.weight is \[6, 32\], the model's is"):
        load_weights_into(model, source.state_dict(), other_classes=True, complete=True)
    assert changed_keys(before, model) == set()
    content = {"model": source.state_dict(), "names": list("abcde")}
    report = load_weights_into(model, content, other_classes=True)
    assert str(report).splitlines() == [
        f"state dict: {len(before) - 4} tensors loaded",
        f"state dict: {BOX}.cls_score.weight is [6, 32], the model's is [3, 32]: skipped, trained "
        "from scratch",
        f"state dict: {BOX}.bbox_pred.weight is [24, 32], the model's is [12, 32]: skipped, "
        "trained from scratch",
    ]
    assert report.missing == report.unused == ()
    kept = {
        f"{BOX}.{layer}.{p}" for layer in ("cls_score", "bbox_pred") for p in ("weight", "bias")
    }
    for key, value in model.state_dict().items():
        assert torch.equal(value, (before if key in kept else source.state_dict())[key])


def test_maskrcnn_benchmark_weights_of_other_classes_load():
    source = small_detector(seed=1, overrides=[CLASSES, 6])
    state = {f"module.{key}": value for key, value in source.state_dict().items()}
    content = {"model": state, "optimizer": {}, "iteration": 3}
    report = load_weights_into(small_detector(), content, other_classes=True)
    assert [line.split()[2] for line in report.left_out] == [
        *(f"{BOX}.cls_score.weight", f"{BOX}.bbox_pred.weight")
    ]


def test_weights_of_the_same_classes_load_completely():
    source, model = small_detector(seed=1), small_detector(seed=2)
    report = load_weights_into(model, source.state_dict(), other_classes=True)
    assert report.left_out == () and report.loaded == len(source.state_dict())


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 16], "roi_heads.box.feature_extractor.fc6"),
        (["MODEL.RPN.ASPECT_RATIOS", (0.5, 1.0)], "rpn.head.cls_logits"),
        (["MODEL.RESNETS.STEM_OUT_CHANNELS", 8], "backbone.body.stem.conv1"),
    ],
)
def test_other_mismatches_raise(overrides, name):
    source = small_detector(seed=1, overrides=[CLASSES, 6, *overrides])
    model = small_detector(seed=2)
    before = copy_state(model)
    with pytest.raises(CheckpointError, match="does not fit the model") as caught:
        load_weights_into(model, source.state_dict(), other_classes=True)
    assert name in str(caught.value)
    assert changed_keys(before, model) == set()
    narrow = source.state_dict() | {f"{BOX}.cls_score.weight": torch.zeros(6, 31)}
    with pytest.raises(CheckpointError):
        load_weights_into(model, narrow, other_classes=True)


def test_predictor_of_another_width_raises():
    state = small_detector().state_dict() | {f"{BOX}.cls_score.weight": torch.zeros(6, 31)}
    with pytest.raises(CheckpointError, match=r"cls_score.weight is \[6, 31\], the model's"):
        load_weights_into(small_detector(), state, other_classes=True)


@pytest.mark.parametrize(
    ("kind", "overrides", "left_out"),
    [
        ("maskrcnn", [CLASSES, 4], [f"{BOX}.cls_score", f"{BOX}.bbox_pred", MASK]),
        (
            "keypointrcnn",
            ["MODEL.ROI_KEYPOINT_HEAD.NUM_CLASSES", 5],
            ["roi_heads.keypoint.predictor.kps_score_lowres"],
        ),
        ("retinanet", ["MODEL.RETINANET.NUM_CLASSES", 4], ["rpn.head.cls_logits"]),
    ],
)
def test_torchvision_weights_of_other_classes_load(kind, overrides, left_out):
    with torch.device("meta"):
        source = networks.build(kind)
        cfg = load_config(f"configs/{networks.CONFIGS[kind]}.yaml", overrides)
        model = build_detection_model(cfg)
    report = load_weights_into(model, source.state_dict(), other_classes=True)
    assert [line.split()[2] for line in report.left_out] == [f"{p}.weight" for p in left_out]
    assert report.missing == report.unused == ()
    assert report.loaded == len(model.state_dict()) - 2 * len(left_out) - sum(
        "cell_anchors" in key for key in model.state_dict()
    )


def dataset(*names):
    ids = tuple(10 * (i + 1) for i in range(len(names)))
    return SimpleNamespace(path="val.json", names=names, category_ids=ids)


def test_labels_are_matched_by_name():
    assert matched_category_ids(("a", "b"), dataset("a", "b")) == [10, 20]
    assert matched_category_ids(("a", "b"), dataset("b", "a")) == [20, 10]
    assert matched_category_ids(("A", "b", "c"), dataset("B", "a")) == [20, 10, None]
    assert matched_category_ids(("N/A", "x", "N/A"), dataset("X")) == [None, 10, None]
    # Case matters if names differ only in case.
    assert matched_category_ids(("a", "A"), dataset("A")) == [None, 10]


@pytest.mark.parametrize(
    ("names", "data", "message"),
    [
        (("a",), ("a", "b"), r"val.json: categories \['a', 'b'\] differ from the detector's"),
        (("a", "A"), ("b",), "differ"),
    ],
)
def test_unmatched_category_names_raise(names, data, message):
    with pytest.raises(ValueError, match=message):
        matched_category_ids(names, dataset(*data))


def test_predictor_layer_names_exist_in_the_models():
    """A renamed layer must not be skipped like a predictor of other classes."""
    from detops.engine.weights import PREDICTORS, RETINANET_PREDICTORS

    names = set()
    for kind in ("maskrcnn", "keypointrcnn", "retinanet"):
        with torch.device("meta"):
            model = build_detection_model(load_config(f"configs/{networks.CONFIGS[kind]}.yaml"))
        names |= {re.sub(r"\.(weight|bias)$", "", key) for key in model.state_dict()}
    assert {*PREDICTORS, *RETINANET_PREDICTORS} <= names
