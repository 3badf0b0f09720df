# SPDX-License-Identifier: MIT
"""Examples from the help of train and eval, and the first of export, run as written."""

import json
import shlex
import subprocess
import sys

import pytest
import torch
from paths import environment
from PIL import Image

from detops import cli
from detops.cli.commands import evaluate_command, export_command, train
from detops.cli.options import PACKAGE
from detops.config import load_config
from detops.engine import load_checkpoint
from detops.modeling import build_detection_model

for module in ("onnxscript", "onnxruntime"):
    pytest.importorskip(module)
pytestmark = pytest.mark.slow

VAL = PACKAGE / "assets" / "tree_crowns" / "val.jpg"
# Options that shorten the training, appended to the example.
SHORTER = [
    *("SOLVER.MAX_ITER", "2", "SOLVER.IMS_PER_BATCH", "2", "INPUT.MIN_SIZE_TRAIN", "[64]"),
    *("INPUT.TILE_SIZE", "0", "INPUT.MIN_SIZE_TEST", "64", "--device", "cpu"),
]


def examples(command):
    """Returns the words of each example in the help of a command."""
    lines = command.__doc__.replace("\\\n", " ").splitlines()
    found = [shlex.split(line) for line in lines if line.startswith(" " * 8)]
    assert found and all(words[0] in ("detops", "torchrun") for words in found)
    return found


def coco(file, names, count=2):
    file.parent.mkdir(exist_ok=True)
    images, annotations = [], []
    for i in range(count):
        name = f"{file.stem}{i}.png"
        Image.open(VAL).crop((90 * i, 0, 90 * i + 80, 70)).save(file.parent / name)
        images.append({"id": i, "file_name": name, "width": 80, "height": 70})
        for j in range(len(names)):
            box = [10 * j, 5, 30, 40]
            annotations.append(
                {"id": len(annotations), "image_id": i, "category_id": j + 1, "bbox": box}
            )
    categories = [{"id": j + 1, "name": name} for j, name in enumerate(names)]
    file.write_text(
        json.dumps({"images": images, "annotations": annotations, "categories": categories})
    )


def voc(folder, name, objects):
    for subfolder in ("Annotations", "JPEGImages", "ImageSets/Main"):
        (folder / subfolder).mkdir(parents=True)
    Image.open(VAL).crop((0, 0, 80, 70)).save(folder / "JPEGImages" / f"{name}.jpg")
    (folder / "ImageSets" / "Main" / "test.txt").write_text(f"{name}\n")
    boxes = "".join(
        f"<object><name>{kind}</name><difficult>{difficult}</difficult><bndbox><xmin>5</xmin>"
        "<ymin>5</ymin><xmax>40</xmax><ymax>50</ymax></bndbox></object>"
        for kind, difficult in objects
    )
    (folder / "Annotations" / f"{name}.xml").write_text(
        f"<annotation><filename>{name}.jpg</filename><size><width>80</width><height>70</height>"
        f"<depth>3</depth></size>{boxes}</annotation>"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Creates a folder with the data of the examples, in which they also write their files."""
    folder = tmp_path_factory.mktemp("examples")
    coco(folder / "my" / "train.json", ["oak", "pine", "house"])
    coco(folder / "my" / "val.json", ["oak", "pine", "house"])
    coco(folder / "coco" / "instances_val2017.json", ["person", "dog"], count=1)
    voc(folder / "VOC2007", "1", [("tree", 0), ("house", 1)])
    return folder


def run(words, capsys):
    assert cli.main(words[1:]) == 0, (words, capsys.readouterr().err)
    return capsys.readouterr()


# One test, because later examples use the files of earlier ones.
@pytest.mark.exhaustive
def test_help_examples_run_as_written(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    for words in examples(train):
        if words[0] == "torchrun":
            command = [sys.executable, "-m", "torch.distributed.run", *words[1:]]
            options = [*SHORTER, "SOLVER.MAX_ITER", "3"]
            process = subprocess.run(
                [*command, *options], env=environment(OMP_NUM_THREADS="1"), capture_output=True
            )
            assert process.returncode == 0, process.stderr.decode()
            continue
        printed = run([*words, *SHORTER], capsys)
        if "--weights" in words:
            assert printed.err.count("skipped, trained from scratch") == 2
            for layer, width in (("cls_score", 256), ("bbox_pred", 256)):
                assert f"predictor.{layer}.weight is [" in printed.err
                assert f", {width}]" in printed.err
    assert load_checkpoint(folder / "runs/trees/checkpoint.pt")["training"]["step"] == 3
    checkpoint = load_checkpoint(folder / "runs/mine/weights.pt")
    assert checkpoint["names"] == ["oak", "pine", "house"]
    assert set(json.loads((folder / "runs/mine/results.json").read_text())["evaluation"]) == {
        "val.json"
    }

    network = load_config(PACKAGE / "configs" / "faster_rcnn_R_50_FPN_1x.yaml")
    torch.save({"model": build_detection_model(network).state_dict()}, "model_final.pth")
    run(examples(export_command)[0], capsys)  # The last example of eval evaluates this file.
    outputs = [run([*words, "--device", "cpu"], capsys).out for words in examples(evaluate_command)]
    assert len(outputs) == 5 and all("AP50" in text for text in outputs)
    assert json.loads((folder / "results.json").read_text())["images"] == 2
