# SPDX-License-Identifier: MIT
"""Loading detectron2 weights; test_modeling_detectron2.py compares their detections."""

import json
import pickle
import resource
import subprocess
import sys
from collections import OrderedDict

import detectron2_networks as networks
import numpy as np
import pytest
import torch
from fuzz import contents
from needs import NEEDS_NO_SANITIZER
from PIL import Image

from detops import cli
from detops.config import dump_config, load_config
from detops.engine import CheckpointError, Detector, load_weights_into
from detops.engine.pickled import read_pickle
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow

KINDS = ("faster_rcnn", "mask_rcnn", "retinanet")


def config(kind, overrides=()):
    path = f"configs/detectron2_{kind}_R_50_FPN.yaml"
    return load_config(path, [*networks.OVERRIDES, *overrides])


def detector(kind, overrides=()):
    torch.manual_seed(0)
    return build_detection_model(config(kind, overrides))


def arrays(state):
    return {key: value.numpy() for key, value in state.items()}


def write_pickle(path, content, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def assert_equal_weights(a, b):
    assert list(a) == list(b)
    for key in a:
        assert torch.equal(a[key], b[key]), key


@pytest.mark.parametrize("kind", KINDS)
def test_every_detectron2_name_is_mapped(kind):
    state, model = networks.random_state(kind), detector(kind)
    report = load_weights_into(model, state, complete=True)
    assert report.loaded == len(state) and report.missing == report.unused == ()
    ours = model.state_dict()
    root = "backbone.bottom_up"
    for their_key, our_key in (
        (f"{root}.stem.conv1.weight", "backbone.body.stem.conv1.weight"),
        (f"{root}.stem.conv1.norm.bias", "backbone.body.stem.bn1.bias"),
        (f"{root}.res2.0.shortcut.weight", "backbone.body.layer1.0.downsample.0.weight"),
        (f"{root}.res4.0.shortcut.norm.weight", "backbone.body.layer3.0.downsample.1.weight"),
        (f"{root}.res5.2.conv3.weight", "backbone.body.layer4.2.conv3.weight"),
        (f"{root}.res5.2.conv3.norm.running_mean", "backbone.body.layer4.2.bn3.running_mean"),
        ("backbone.fpn_lateral5.weight", "backbone.fpn.fpn_inner4.weight"),
        ("backbone.fpn_output3.bias", "backbone.fpn.fpn_layer2.bias"),
    ):
        assert torch.equal(ours[our_key], state[their_key]), our_key
    variance = ours["backbone.body.layer2.1.bn2.running_var"]
    assert torch.equal(variance, state[f"{root}.res3.1.conv2.norm.running_var"] + 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_configs_have_the_shapes_of_the_model_zoo(kind):
    state = networks.random_state(kind, 80, stem=64, res2=256, width=64, fpn=256, fc=1024)
    with torch.device("meta"):
        model = build_detection_model(load_config(f"configs/detectron2_{kind}_R_50_FPN.yaml"))
    state = {key: value.to("meta") for key, value in state.items()}
    assert load_weights_into(model, state, complete=True).loaded == len(state)


def test_background_becomes_the_first_class():
    state, model = networks.random_state("mask_rcnn"), detector("mask_rcnn")
    load_weights_into(model, state)
    ours = model.state_dict()
    for suffix in ("weight", "bias"):
        score = ours[f"roi_heads.box.predictor.cls_score.{suffix}"]
        theirs = state[f"roi_heads.box_predictor.cls_score.{suffix}"]
        assert torch.equal(score[0], theirs[-1]) and torch.equal(score[1:], theirs[:-1])
        deltas = ours[f"roi_heads.box.predictor.bbox_pred.{suffix}"]
        assert torch.equal(deltas[4:], state[f"roi_heads.box_predictor.bbox_pred.{suffix}"])
        assert not deltas[:4].any()
        masks = ours[f"roi_heads.mask.predictor.mask_fcn_logits.{suffix}"]
        assert torch.equal(masks[1:], state[f"roi_heads.mask_head.predictor.{suffix}"])
        assert not masks[0].any()


def test_class_agnostic_deltas_load():
    state = networks.random_state("faster_rcnn")
    for suffix in ("weight", "bias"):
        state[f"roi_heads.box_predictor.bbox_pred.{suffix}"] = torch.ones_like(
            state[f"roi_heads.box_predictor.bbox_pred.{suffix}"][:4]
        )
    model = detector("faster_rcnn", ["MODEL.CLS_AGNOSTIC_BBOX_REG", True])
    load_weights_into(model, state, complete=True)
    assert model.roi_heads.box.predictor.bbox_pred.bias.tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("kind", ["faster_rcnn", "retinanet"])
def test_older_checkpoints_with_anchors_and_mean_load(kind):
    state, model = networks.random_state(kind), detector(kind)
    root = "" if kind == "retinanet" else "proposal_generator."
    for i in range(5):
        anchors = model.rpn.anchor_generator.cell_anchors[i].clone()
        state[f"{root}anchor_generator.cell_anchors.{i}"] = anchors
    state["pixel_mean"] = state["pixel_std"] = torch.ones(3, 1, 1)
    before = model.rpn.anchor_generator.cell_anchors[2].clone()
    load_weights_into(model, state, complete=True)
    assert torch.equal(model.rpn.anchor_generator.cell_anchors[2], before)


def test_keypoint_c4_and_deformable_names_are_mapped():
    with torch.device("meta"):
        keypoint = build_detection_model(
            load_config(
                "configs/keypoint_rcnn_R_50_FPN_1x.yaml", ["MODEL.CONVENTION", "detectron2"]
            )
        )
        c4 = build_detection_model(
            load_config("configs/mask_rcnn_R_50_C4_1x.yaml", ["MODEL.CONVENTION", "detectron2"])
        )
        deformable = detector("faster_rcnn", ["MODEL.RESNETS.STAGE_WITH_DCN", (False, *[True] * 3)])
    root = "backbone.bottom_up.res3.0.conv2"
    offset = "backbone.body.layer2.0.conv2.offset"
    cases = (
        (keypoint, "roi_heads.keypoint_head.conv_fcn8", "keypoint.feature_extractor.conv_fcn8"),
        (keypoint, "roi_heads.keypoint_head.score_lowres", "keypoint.predictor.kps_score_lowres"),
        (c4, "roi_heads.res5.2.conv3", "box.feature_extractor.head.layer4.2.conv3"),
        (c4, "roi_heads.mask_head.deconv", "mask.predictor.conv5_mask"),
        (deformable, f"{root}_offset", offset),
        (deformable, root, "backbone.body.layer2.0.conv2.conv"),
    )
    stem = {"backbone.bottom_up.stem.conv1.norm.weight": torch.empty(64, device="meta")}
    for model, theirs, ours in cases:
        weight_key = f"{ours}.weight" if ours.startswith("backbone") else f"roi_heads.{ours}.weight"
        value = torch.empty(model.state_dict()[weight_key].shape, device="meta")
        stem_state = dict(stem)
        if model is deformable:
            stem_state = {key: value[:16] for key, value in stem.items()}
        if model is c4:
            stem_state = {key.replace("bottom_up.", ""): value for key, value in stem.items()}
        report = load_weights_into(model, stem_state | {f"{theirs}.weight": value})
        assert report.unused == () and weight_key not in report.missing, theirs


def test_body_weights_load_in_any_convention():
    """detectron2's tool converts torchvision bodies like this; any convention can use them."""
    state = networks.random_state("faster_rcnn")
    root = "backbone.bottom_up."
    body = {k.removeprefix(root): v for k, v in state.items() if k.startswith(root)}
    body["stem.fc.weight"] = torch.zeros(1000, 1024)
    for convention in ("detectron2", "detops"):
        model = detector("faster_rcnn", ["MODEL.CONVENTION", convention])
        report = load_weights_into(model, body)
        assert report.loaded == len(body) - 1 and report.unused == ()
        assert not any(key.startswith("backbone.body") for key in report.missing)


@pytest.mark.parametrize("kind", KINDS)
def test_detector_weights_require_the_detectron2_convention(kind):
    state = networks.random_state(kind)
    model = detector(kind, ["MODEL.CONVENTION", "detops"])
    with pytest.raises(CheckpointError, match="MODEL.CONVENTION detectron2 for a detector"):
        load_weights_into(model, state)


def test_loading_skips_predictors_of_other_classes():
    state = networks.random_state("mask_rcnn")
    model = detector("mask_rcnn", ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3])
    with pytest.raises(CheckpointError, match=r"cls_score.weight is \[6, 48\], the model's is \[3"):
        load_weights_into(model, state)
    report = load_weights_into(model, state, other_classes=True)
    assert len(report.left_out) == 3 and report.unused == ()
    malformed = state | {"roi_heads.box_predictor.cls_score.bias": torch.tensor(1.0)}
    with pytest.raises(CheckpointError, match=r"cls_score.bias is \[\]"):
        load_weights_into(detector("mask_rcnn"), malformed)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pickles_of_arrays_load(tmp_path, protocol):
    state = networks.random_state("faster_rcnn")
    expected, model = detector("faster_rcnn"), detector("faster_rcnn")
    load_weights_into(expected, state)
    content = {"model": arrays(state), "__author__": "Detectron2 Model Zoo"}
    content["model"]["proposal_generator.anchor_generator.cell_anchors.0"] = (
        expected.rpn.anchor_generator.cell_anchors[0].numpy()
    )
    # NumPy layouts: column-major, the other byte order, and an empty array.
    name = "roi_heads.box_head.fc1.weight"
    content["model"][name] = np.asfortranarray(content["model"][name])
    name = "backbone.fpn_lateral2.bias"
    content["model"][name] = content["model"][name].astype(">f4")
    content["model"]["pixel_mean"] = np.zeros((0, 1, 1), np.float64)
    content["model"]["stem.num_batches_tracked"] = np.array(3)
    file = write_pickle(
        tmp_path / "model_final.pkl", content | {"matching_heuristics": True}, protocol
    )
    load_weights_into(model, file, complete=True)
    assert_equal_weights(model.state_dict(), expected.state_dict())
    ordered = OrderedDict(content["model"])
    ordered._metadata = OrderedDict({"": {"version": 1}})
    load_weights_into(model, write_pickle(file, ordered, protocol), complete=True)


def test_python_2_pickle_loads(tmp_path):
    """In Python 2, text was stored as bytes."""
    first = "backbone.bottom_up.stem.conv1.norm.weight"
    lines = b"(dp0\nS'" + first.encode() + b"'\np1\n"
    lines += b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
    lines += b"(I1\n(I2\ntcnumpy\ndtype\n(S'f4'\nI0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\n"
    lines += b"S'\\x00\\x00\\x80?\\x00\\x00\\xc8\\xc2'\ntbs."
    (tmp_path / "old.pkl").write_bytes(lines)
    assert read_pickle(tmp_path / "old.pkl")[first].tolist() == [1, -100]


def test_torch_save_files_may_be_named_pkl(tmp_path):
    state, model = networks.random_state("retinanet"), detector("retinanet")
    torch.save({"model": state, "__author__": "detectron2"}, tmp_path / "model.pkl")
    load_weights_into(model, tmp_path / "model.pkl", complete=True)
    torch.save({"model": state, "iteration": 3}, tmp_path / "model.pth")
    load_weights_into(model, tmp_path / "model.pth", complete=True)


class Call:
    """Calls a function if it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class BuildInstruction:
    """Sets an attribute of its object if it is unpickled."""

    def __reduce__(self):
        return np.dtype, ("f4",), (None, {"__code__": 1})


@pytest.mark.parametrize(
    "content",
    [
        Call(print, "read"),
        Call(eval, "print('read')"),
        Call(np.load, "read"),
        Call(np.fromfile, "/etc/hostname", "u1"),
        Call(torch.storage._load_from_bytes, b"read"),
        BuildInstruction(),
        torch.ones(3),
        np.array([1, "a", None], object),
        np.array(["text"]),
        np.array([1 + 1j]),
        np.zeros(2, [("a", "f4")]),
        np.datetime64("2020-01-01"),
        np.dtype("f4"),
    ],
    ids=lambda content: type(content).__name__,
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_pickles_of_other_objects_are_rejected(tmp_path, capsys, content, protocol):
    model = detector("faster_rcnn")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    file = write_pickle(tmp_path / "bad.pkl", {"model": {"a": content}}, protocol)
    with pytest.raises(CheckpointError, match=r"bad.pkl: (damaged, or not|expected tensors)"):
        load_weights_into(model, file)
    assert "read" not in capsys.readouterr().out
    assert_equal_weights(model.state_dict(), before)


def _limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))


@pytest.mark.exhaustive
@NEEDS_NO_SANITIZER
@pytest.mark.parametrize("number", range(len(contents.greedy_pickles())))
def test_reading_a_malicious_pickle_uses_little_memory(tmp_path, number):
    (tmp_path / "a.pkl").write_bytes(contents.greedy_pickles()[number])
    code = f"""
import resource, sys
from detops.engine.pickled import read_pickle
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_pickle({str(tmp_path / "a.pkl")!r})
except ValueError as error:
    assert "a.pkl: damaged, or not a checkpoint" in str(error)
    sys.exit(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 100_000)
"""
    run = subprocess.run([sys.executable, "-c", code], timeout=120, preexec_fn=_limit_memory)
    assert run.returncode == 0


def test_shared_pickle_objects_are_read_once(tmp_path):
    (tmp_path / "a.pkl").write_bytes(contents.pickles()[-1])
    value, depth = read_pickle(tmp_path / "a.pkl"), 0
    while value:
        assert value["a"] is value["b"]
        value, depth = value["a"], depth + 1
    assert depth == 64


def test_damaged_pickles_are_rejected(tmp_path):
    model, intact = detector("retinanet"), tmp_path / "good.pkl"
    write_pickle(intact, {"model": arrays(networks.random_state("retinanet"))}, 4)
    data, damaged = intact.read_bytes(), tmp_path / "bad.pkl"
    for content in (b"", b"\x80", data[:1000], data[:-1], b"text", b"PK nothing", data[1:]):
        damaged.write_bytes(content)
        with pytest.raises(CheckpointError, match="bad.pkl: damaged, or not a checkpoint"):
            load_weights_into(model, damaged)
    shape = b"\x8a\x08" + (1 << 40).to_bytes(8, "little")
    # The array claims more bytes than follow.
    array = pickle.dumps(np.zeros(3, np.float32), 2).replace(b"K\x03\x85", shape + b"\x85")
    damaged.write_bytes(array)
    with pytest.raises(CheckpointError, match="bad.pkl: damaged, or not a checkpoint"):
        load_weights_into(model, damaged)
    with pytest.raises(CheckpointError, match="none.pkl: no such checkpoint file"):
        load_weights_into(model, tmp_path / "none.pkl")
    generator = np.random.default_rng(0)
    for _ in range(300):
        changed = bytearray(data[:3000])
        changed[generator.integers(len(changed))] = generator.integers(256)
        damaged.write_bytes(changed)
        with pytest.raises(CheckpointError):
            load_weights_into(model, damaged)


def test_detect_accepts_a_detectron2_pickle(tmp_path, capsys):
    state, _ = networks.case("mask_rcnn")
    file = write_pickle(tmp_path / "model_final.pkl", {"model": arrays(state), "__author__": "x"})
    settings = tmp_path / "small.yaml"
    settings.write_text(dump_config(config("mask_rcnn")))
    image_path, found = tmp_path / "picture.png", tmp_path / "found.json"
    Image.fromarray(networks.photographs()[1]).save(image_path)
    command = ["detect", str(image_path), "--weights", str(file), "--config", str(settings)]
    command += ["--json", str(found), "--output", str(tmp_path / "out"), "--device", "cpu"]
    assert cli.main([*command, "--score-threshold", "0"]) == 0, capsys.readouterr().err
    (entry,) = json.loads(found.read_text())
    expected = Detector.from_weights(file, load_config(settings), "cpu").detect(image_path)
    assert [d["name"] for d in entry["detections"]] == expected["names"]
    assert len(expected["names"]) > 10
