# SPDX-License-Identifier: MIT
"""docs/training.md: its commands and Python, run as written, and the files they write."""

import json
import re
import shlex

import pytest
import torch
import torchvision_networks as networks
from paths import ROOT
from PIL import Image

from detops import cli
from detops.cli.options import PACKAGE
from detops.config import load_config
from detops.engine import load_checkpoint
from detops.engine.weights_torchvision import cached_file, newest_weights

PAGE = ROOT / "docs" / "training.md"
VAL = PACKAGE / "assets" / "tree_crowns" / "val.jpg"
CLASSES = ["oak", "pine", "house"]
# Options that shorten the training, appended to the command.
SHORTER = [
    *("SOLVER.MAX_ITER", "2", "SOLVER.TEST_PERIOD", "1", "SOLVER.IMS_PER_BATCH", "2"),
    *("SOLVER.WARMUP_ITERS", "0", "INPUT.MIN_SIZE_TRAIN", "[64]", "INPUT.TILE_SIZE", "0"),
    *("INPUT.MIN_SIZE_TEST", "64", "--device", "cpu"),
]
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")


def commands():
    lines = PAGE.read_text().replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith("    detops ")]


def view(x, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.open(VAL).crop((x, 0, x + 80, 70)).save(file)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Writes the data of the page, and random weights in place of the torchvision weights."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("train", "val")):
        view(150 * number, tmp_path / "my" / f"{name}.png")
        view(150 * number + 75, tmp_path / "my" / "images" / name / "a.png")
        labels = tmp_path / "my" / "labels" / name / "a.txt"
        labels.parent.mkdir(parents=True)
        labels.write_text("2 0.5 0.5 0.4 0.4\n")
        objects = [
            {"id": i, "image_id": 0, "category_id": i, "bbox": [20 * i - 10, 5, 19, 40]}
            for i in (1, 2, 3)
        ]
        data = {
            "images": [{"id": 0, "file_name": f"{name}.png", "width": 80, "height": 70}],
            "categories": [{"id": i, "name": kind} for i, kind in enumerate(CLASSES, start=1)],
            "annotations": objects,
        }
        (tmp_path / "my" / f"{name}.json").write_text(json.dumps(data))
    (tmp_path / "my" / "data.yaml").write_text(
        f"train: images/train\nval: images/val\nnames: {json.dumps(CLASSES)}\n"
    )
    view(50, tmp_path / "photo.jpg")
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    file = cached_file(newest_weights("fasterrcnn_resnet50_fpn"))
    file.parent.mkdir(parents=True)
    torch.save(networks.build("fasterrcnn").state_dict(), file)
    return tmp_path


# One test, because later commands use the files of earlier ones.
@pytest.mark.exhaustive
def test_commands_of_the_page_write_their_files(folder, capsys):
    outputs = []
    for arguments in commands():
        shortened = SHORTER if arguments[1] == "train" else []
        assert cli.main([*arguments[1:], *shortened]) == 0, (arguments, capsys.readouterr().err)
        outputs.append((arguments[1], capsys.readouterr()))
    kinds = [kind for kind, _ in outputs]
    assert kinds == ["data"] * 2 + ["train"] * 2 + ["eval", "detect"] + ["train"] * 2
    assert "boxes match no anchor" in outputs[0][1].out and "no problems" in outputs[1][1].out
    for number in (6, 7):
        assert outputs[number][1].err.count("skipped, trained from scratch") == 2

    run = folder / "runs" / "mine"
    for row in re.findall(r"^\| `([\w./]+)`", PAGE.read_text().split("`runs/mine` |")[1], re.M):
        if row != "checkpoint_000500.pt":
            assert (run / row).is_file(), row
    assert len(list((run / "best").iterdir())) == 3
    assert {"step", "AP"} <= load_checkpoint(run / "best.pt").keys()
    assert (folder / "checked" / "2_box_sizes.png").is_file()
    assert load_checkpoint(folder / "runs/tuned/weights.pt")["names"] == CLASSES
    assert load_checkpoint(folder / "runs/from_coco/weights.pt")["names"] == ["tree"]


@pytest.mark.slow
def test_python_of_the_page_prints_names_and_box_shape(folder, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    exec(code, {})
    assert capsys.readouterr().out == "('oak', 'pine', 'house') torch.Size([1, 4])\n"


def test_example_config_equals_the_torchvision_config():
    overrides = ["MODEL.WEIGHT", "", "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 2]
    overrides += ["MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE", 128]
    names = ("tree_crowns_from_coco", "torchvision_faster_rcnn_R_50_FPN")
    ours, theirs = (load_config(PACKAGE / "configs" / f"{n}.yaml", overrides).MODEL for n in names)
    assert ours == theirs
