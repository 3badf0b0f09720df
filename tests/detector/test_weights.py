# SPDX-License-Identifier: MIT
"""Loading weights of other libraries; test_weights_torchvision.py compares detections."""

import json
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torchvision
from PIL import Image
from test_modeling_detector import SMALL, chdir_to_root, small_detector  # noqa: F401

from detops import cli
from detops.config import load_config
from detops.engine import CheckpointError, Detector, load_checkpoint, load_weights_into
from detops.modeling import build_detection_model

pytestmark = pytest.mark.slow

ANCHORS = "rpn.anchor_generator.cell_anchors."


def copy_weights(model):
    """Returns copies of all weights except the anchors."""
    return {k: v.clone() for k, v in model.state_dict().items() if not k.startswith(ANCHORS)}


def assert_equal_weights(a, b):
    assert list(a) == list(b)
    for key in a:
        assert torch.equal(a[key], b[key]), key


def test_maskrcnn_benchmark_checkpoint_loads_completely(tmp_path):
    source, model = small_detector(seed=1), small_detector(seed=2)
    state = OrderedDict((f"module.{key}", value) for key, value in copy_weights(source).items())
    state["module.backbone.body.stem.bn1.num_batches_tracked"] = torch.tensor(7)
    optimizer = torch.optim.SGD(source.parameters(), 0.1, momentum=0.9).state_dict()
    content = {"model": state, "optimizer": optimizer, "scheduler": {"last_epoch": 3}}
    torch.save(content | {"iteration": 3}, tmp_path / "model.pth")
    report = load_weights_into(model, tmp_path / "model.pth", complete=True)
    assert_equal_weights(copy_weights(model), copy_weights(source))
    assert report.loaded == len(state) - 1 and report.missing == report.unused == ()
    assert str(report) == f"{tmp_path}/model.pth: {report.loaded} tensors loaded"
    # A plain state dict in half precision also loads.
    half = {key: value.half() for key, value in copy_weights(source).items()}
    load_weights_into(model, half, complete=True)
    assert_equal_weights(copy_weights(model), {key: value.float() for key, value in half.items()})


def test_maskrcnn_benchmark_anchors_keep_their_position():
    overrides = ["MODEL.RPN.ANCHOR_SIZES", (32, 64, 128), "MODEL.RPN.ASPECT_RATIOS", (0.5, 1, 2.0)]
    model = small_detector(overrides=overrides)
    # The anchors of maskrcnn-benchmark for stride 4 and size 32: in whole pixels, including the
    # last one, centred on a cell.
    theirs = torch.tensor([[-22.0, -10, 25, 13], [-14, -14, 17, 17], [-10, -22, 13, 25]])
    others = torch.tensor([[-4.0, -4, 4, 4], [-8, -8, 8, 8], [-9, -9, 9, 9]])
    before = model.rpn.anchor_generator.cell_anchors[1].clone()
    state = copy_weights(model) | {
        f"{ANCHORS}0": theirs, f"{ANCHORS}1": others, f"{ANCHORS}2": torch.zeros(5, 4)
    }  # fmt: skip
    report = load_weights_into(model, state)
    anchors = model.rpn.anchor_generator.cell_anchors
    assert anchors[0].tolist() == [[-22, -10, 26, 14], [-14, -14, 18, 18], [-10, -22, 14, 26]]
    # The config takes precedence if the file has other sizes.
    assert torch.equal(anchors[1], before)
    assert report.unused == (f"{ANCHORS}1", f"{ANCHORS}2") and report.missing == ()


def test_own_checkpoint_loads_with_its_anchors():
    source, model = small_detector(seed=1), small_detector(seed=2)
    report = load_weights_into(model, {"model": source.state_dict(), "names": ["a"]}, complete=True)
    assert report.loaded == len(source.state_dict())
    assert_equal_weights(model.state_dict(), source.state_dict())


BODIES = {
    "resnet18": ("R-18-FPN", "BasicBlock", 64, 1, 64),
    "resnet34": ("R-34-FPN", "BasicBlock", 64, 1, 64),
    "resnet50": ("R-50-FPN", "Bottleneck", 256, 1, 64),
    "resnet101": ("R-101-FPN-RETINANET", "Bottleneck", 256, 1, 64),
    "resnext50_32x4d": ("R-50-FPN", "Bottleneck", 256, 32, 4),
    "resnext101_32x8d": ("R-101-FPN", "Bottleneck", 256, 32, 8),
}


def detector_on(body, overrides=()):
    name, block, channels, groups, width = BODIES[body]
    resnets = {
        "TRANS_FUNC": f"{block}WithFixedBatchNorm", "RES2_OUT_CHANNELS": channels,
        "NUM_GROUPS": groups, "WIDTH_PER_GROUP": width, "STRIDE_IN_1X1": False,
    }  # fmt: skip
    overrides = list(overrides) + [
        x for key, value in resnets.items() for x in (f"MODEL.RESNETS.{key}", value)
    ]
    retinanet = ["MODEL.RETINANET_ON", name.endswith("RETINANET")]
    overrides += [*retinanet, "MODEL.BACKBONE.CONV_BODY", name]
    return build_detection_model(
        load_config("configs/faster_rcnn_R_50_FPN_1x.yaml", overrides)
    )  # fmt: skip


@pytest.mark.parametrize("body", BODIES)
def test_torchvision_resnets_load_into_the_body(body):
    with torch.device("meta"):
        source, model = getattr(torchvision.models, body)(), detector_on(body)
    report = load_weights_into(model, source.state_dict())
    inside = [key for key in model.state_dict() if key.startswith("backbone.body.")]
    assert report.loaded == len(inside) and report.unused == ()
    assert not any(key.startswith("backbone.body.") for key in report.missing)
    assert {key.split(".")[1] for key in report.missing} == (
        {"fpn", "head"} if "RETINANET" in BODIES[body][0] else {"fpn", "head", "box"}
    )
    message = f"{report.loaded} tensors loaded; {len(report.missing)} missing: backbone.fpn.fpn"
    assert message in str(report)


def test_resnet_feature_maps_match_torchvision():
    source, model = torchvision.models.resnet18().eval(), detector_on("resnet18").eval()
    for module in source.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_()
            module.running_mean.normal_()
            # The variance is small enough for the epsilon to matter.
            module.running_var.uniform_(1e-5, 1)
    state = source.state_dict()
    load_weights_into(model, state, batch_norm_epsilon=0)
    image = torch.rand(2, 3, 65, 47)
    maps = model.backbone.body(image)
    x = source.maxpool(source.relu(source.bn1(source.conv1(image))))
    for i, found in enumerate(maps, start=1):
        x = getattr(source, f"layer{i}")(x)
        torch.testing.assert_close(found, x, rtol=1e-4, atol=1e-4 * x.abs().max().item())
    # Old files lack num_batches_tracked; half precision would lose the added epsilon.
    old = {key: value.half() for key, value in state.items() if "num_batches" not in key}
    load_weights_into(model, {key: value.float() for key, value in old.items()})
    before = copy_weights(model)
    load_weights_into(model, old)
    assert_equal_weights(copy_weights(model), before)


def test_epsilon_argument_applies_only_to_frozen_batch_norm():
    model = small_detector()
    with torch.device("meta"):
        state = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights_backbone=None)
    state = {
        key: torch.ones(value.shape)
        for key, value in state.state_dict().items()
        if key.startswith("backbone.body") and "conv" not in key
    }
    state["backbone.body.conv1.weight"] = torch.ones(64, 3, 7, 7)
    model = detector_on("resnet50")
    variance = model.backbone.body.stem.bn1.running_var
    load_weights_into(model, state, batch_norm_epsilon=0)
    assert (variance == 1 + 1e-5).all()  # not frozen: the file has num_batches_tracked
    frozen = {key: value for key, value in state.items() if "num_batches" not in key}
    load_weights_into(model, frozen, batch_norm_epsilon=0)
    assert (variance == 1).all()
    load_weights_into(model, frozen)
    assert (variance == 1 + 1e-5).all()


class MaliciousPickle:
    """Runs code if it is unpickled."""

    def __reduce__(self):
        return print, ("read",)


def test_unreadable_weight_files_raise(tmp_path, capsys):
    model = small_detector()
    before = copy_weights(model)
    (tmp_path / "damaged.pth").write_bytes(b"PK nothing")
    torch.save({"model": {"a": MaliciousPickle()}}, tmp_path / "code.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"model": {"a": 3}}, tmp_path / "number.pth")
    torch.save({}, tmp_path / "empty.pth")
    for source, message in (
        ("none.pth", "none.pth: no such checkpoint file"),
        ("damaged.pth", "damaged.pth: damaged, or not a checkpoint"),
        ("code.pth", "code.pth: damaged, or not a checkpoint"),
        ("list.pth", "list.pth: expected tensors by name, got list"),
        ("number.pth", "number.pth: expected tensors by name, got int at 'a'"),
        ("empty.pth", "empty.pth: expected tensors by name"),
        ("R-50.pkl", "R-50.pkl: no such checkpoint file"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_weights_into(model, tmp_path / source)
    with pytest.raises(CheckpointError, match="catalog://ImageNetPretrained/MSRA/R-50: expected"):
        load_weights_into(model, "catalog://ImageNetPretrained/MSRA/R-50")
    assert "read" not in capsys.readouterr().out
    assert_equal_weights(copy_weights(model), before)


def test_weights_of_another_network_raise_or_are_reported():
    model = small_detector()
    before = copy_weights(model)
    with torch.device("meta"):
        resnet = torchvision.models.resnet50().state_dict()
        vgg = torchvision.models.vgg11().state_dict()
        retinanet = torchvision.models.detection.retinanet_resnet50_fpn(
            weights=None, weights_backbone=None
        ).state_dict()
    with pytest.raises(CheckpointError, match="no tensor belongs to the model; it has feature"):
        load_weights_into(model, vgg)
    shapes = r"stem.conv1.weight is \[64, 3, 7, 7\], the model's is \[16, 3, 7, 7\].*and \d+ more"
    for state in (resnet, retinanet):
        with pytest.raises(CheckpointError, match=shapes):
            load_weights_into(model, state)
    incomplete = copy_weights(model)
    del incomplete["rpn.head.conv.bias"]
    report = load_weights_into(model, incomplete | {"extra": torch.zeros(1)})
    assert report.missing == ("rpn.head.conv.bias",) and report.unused == ("extra",)
    assert "; 1 unused: extra; 1 missing: rpn.head.conv.bias" in str(report)
    with pytest.raises(CheckpointError, match="lacks rpn.head.conv.bias; has unknown extra"):
        load_weights_into(model, incomplete | {"extra": torch.zeros(1)}, complete=True)
    with pytest.raises(CheckpointError, match=r"fit the model: rpn.head.conv.bias is \[\]"):
        load_weights_into(model, incomplete | {"rpn.head.conv.bias": torch.tensor(1.0)})
    assert_equal_weights(copy_weights(model), before)


@pytest.fixture
def small_config(tmp_path):
    lines = Path("configs/tree_crowns.yaml").read_text()
    path = tmp_path / "small.yaml"
    path.write_text(lines)
    from detops.config import dump_config

    path.write_text(dump_config(load_config(path, SMALL)))
    return path


def test_detect_accepts_weights_with_a_config(tmp_path, capsys, small_config):
    source = small_detector(seed=3, overrides=["MODEL.ROI_HEADS.SCORE_THRESH", 0.05])
    file = tmp_path / "family.pth"
    torch.save({"model": copy_weights(source)}, file)
    image_path, found = tmp_path / "picture.png", tmp_path / "found.json"
    Image.effect_noise((90, 70), 80).convert("RGB").save(image_path)
    command = ["detect", str(image_path), "--weights", str(file), "--output", str(tmp_path / "out")]
    command += ["--json", str(found), "--score-threshold", "0", "--device", "cpu"]
    assert cli.main([*command, "--config", str(small_config)]) == 0, capsys.readouterr().err
    (entry,) = json.loads(found.read_text())
    detector = Detector.from_weights(file, load_config(small_config), "cpu")
    assert detector.names == ("1", "2")
    assert_equal_weights(copy_weights(detector.model), copy_weights(source))
    expected = detector.detect(image_path)
    assert [d["name"] for d in entry["detections"]] == expected["names"]
    capsys.readouterr()
    torch.save({"model": {"rpn.head.conv.bias": torch.zeros(64)}}, file)
    assert cli.main([*command, "--config", str(small_config)]) == 2
    assert "does not fit the model" in capsys.readouterr().err


def test_default_names_follow_the_number_of_classes():
    from detops.engine.detect import default_names

    sparse = default_names(load_config(None, ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 91]))
    dense = default_names(load_config(None, ["MODEL.RETINANET_ON", True]))
    assert (len(sparse), sparse[0], sparse[17], sparse[89]) == (90, "person", "dog", "toothbrush")
    assert (len(dense), dense[0], dense[16], dense[79]) == (80, "person", "dog", "toothbrush")


def test_training_starts_from_the_weights(tmp_path, capsys, small_config):
    source = small_detector(seed=3, overrides=["MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2])
    file, run = tmp_path / "family.pth", tmp_path / "run"
    torch.save({"model": copy_weights(source)}, file)
    command = ["train", "--config", str(small_config), "--output", str(run), "--device", "cpu"]
    short = ["SOLVER.MAX_ITER", "1", "SOLVER.IMS_PER_BATCH", "1", "DATASETS.TEST", "[]"]
    short += ["MODEL.ROI_BOX_HEAD.NUM_CLASSES", "2", "MODEL.WEIGHT", str(file)]
    # With a learning rate of 0, the step changes no weight.
    assert cli.main([*command, *short, "SOLVER.BASE_LR", "0"]) == 0, capsys.readouterr().err
    assert "tensors loaded" in capsys.readouterr().err
    trained = load_checkpoint(run / "weights.pt")["model"]
    assert_equal_weights(
        {k: v for k, v in trained.items() if not k.startswith(ANCHORS)}, copy_weights(source)
    )
    # A resumed run uses its own weights.
    file.unlink()
    assert cli.main([*command, *short, "--resume", "SOLVER.MAX_ITER", "2"]) == 0
    assert cli.main([*command[:4], str(tmp_path / "other"), *command[5:], *short]) == 2
    assert "family.pth: no such checkpoint file" in capsys.readouterr().err


def test_deformable_stages_load_plain_weights():
    deformable = ["MODEL.RESNETS.STAGE_WITH_DCN", (False, True, False, True)]
    with torch.device("meta"):
        model, undeformed = detector_on("resnet50", deformable), detector_on("resnet50")
        resnet = torchvision.models.resnet50().state_dict()
    state = copy_weights(undeformed)
    offsets = [key for key in model.state_dict() if ".offset." in key]
    assert len(offsets) == 2 * (4 + 3)
    report = load_weights_into(model, state)
    assert report.unused == () and list(report.missing) == offsets
    # Weights of a network with deformable stages load under their own names.
    assert load_weights_into(model, copy_weights(model), complete=True).missing == ()
    report = load_weights_into(model, resnet)
    assert report.unused == () and report.loaded == 53 * 5
    assert {key for key in report.missing if key.startswith("backbone.body")} == set(offsets)


@pytest.mark.parametrize("kind", ["faster", "mask"])
def test_last_resnet_stage_loads_into_the_head(kind):
    with torch.device("meta"):
        model = build_detection_model(load_config(f"configs/{kind}_rcnn_R_50_C4_1x.yaml"))
        state = torchvision.models.resnet50().state_dict()
    report = load_weights_into(model, state)
    # The mask head shares the box head's stage, under its own name.
    stage = 10 * 5
    assert report.unused == () and report.loaded == 53 * 5 + (stage if kind == "mask" else 0)
    assert "roi_heads.box.feature_extractor.head.layer4.2.conv3.weight" in model.state_dict()
    assert all(key.startswith("rpn.") or ".predictor." in key for key in report.missing)
