"""Published torchvision detectors by name, and `detops weights`."""

import json

import pytest
import torch
import torchvision_networks as networks
from PIL import Image
from torchvision.models import get_model_weights

from detops import cli
from detops.cli.options import PACKAGE
from detops.engine import CheckpointError, Detector
from detops.engine.published import load_published, published_detectors
from detops.engine.weights_torchvision import is_published

cache = networks.cache  # a fixture
VAL = PACKAGE / "assets" / "tree_crowns" / "val.jpg"


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "maskrcnn_resnet50_fpn_v2"])
def test_detections_match_torchvision(tmp_path, monkeypatch, name):
    model = networks.cache_random_weights(name, tmp_path, monkeypatch)
    image = Image.open(VAL).crop((0, 0, 320, 240))
    detector = Detector.from_published(f"torchvision/{name}", "cpu")
    found = detector.detect(image)
    pixels = torch.frombuffer(bytearray(image.convert("RGB").tobytes()), dtype=torch.uint8)
    with torch.inference_mode():
        (expected,) = model([pixels.view(240, 320, 3).permute(2, 0, 1) / 255])
    assert len(found["scores"]) == len(expected["scores"]) > 0
    assert torch.allclose(found["boxes"], expected["boxes"], atol=0.05)
    assert torch.allclose(found["scores"], expected["scores"], atol=1e-4)
    assert torch.equal(found["labels"], expected["labels"])
    names = get_model_weights(name).DEFAULT.meta["categories"]
    assert found["names"] == [names[label] for label in expected["labels"]]
    if "masks" in expected:
        assert found["masks"].dtype == torch.bool
        assert (found["masks"] != (expected["masks"] > 0.5)).float().mean() < 1e-3


@pytest.mark.slow
def test_detect_accepts_a_published_name(tmp_path, monkeypatch, capsys):
    name = "ssdlite320_mobilenet_v3_large"
    networks.cache_random_weights(name, tmp_path / "home", monkeypatch)
    image_path = tmp_path / "small.png"
    Image.open(VAL).crop((0, 0, 160, 120)).save(image_path)
    options = ["--score-threshold", "0", "--classes", "Cake,chair", "--json", tmp_path / "o.json"]
    command = [
        "detect",
        image_path,
        "--weights",
        f"torchvision/{name}",
        "--output",
        tmp_path / "out",
    ]
    assert cli.main(list(map(str, [*command, *options]))) == 0, capsys.readouterr().err
    assert "detecting person, bicycle, car" in capsys.readouterr().err
    (entry,) = json.loads((tmp_path / "o.json").read_text())
    # These random weights also find other classes; labels are COCO category ids.
    numbers = {found["name"]: found["label"] for found in entry["detections"]}
    assert numbers == {"cake": 61, "chair": 62}
    assert cli.main(["weights"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line.split() for line in lines if line.startswith(f"torchvision/{name} "))
    onnx = ["--format", "onnx", "--output", str(tmp_path / "x.onnx")]
    assert cli.main(["export", "--weights", f"torchvision/{name}", *onnx]) == 2
    assert "expected a detector of this package" in capsys.readouterr().err
    assert line[1:] == ["13", "21.3", "-", "-", "yes", "80", "everyday", "classes"]


def test_weights_command_lists_all_published_detectors(capsys, cache):
    listed = {each.name: each for each in published_detectors()}
    assert len(listed) >= 12 and not any(each.downloaded for each in listed.values())
    mask = listed["torchvision/maskrcnn_resnet50_fpn_v2"]
    assert [*mask.ap] == ["box", "mask"] and mask.classes == 80 and 150 < mask.megabytes < 200
    assert [*listed["torchvision/keypointrcnn_resnet50_fpn"].ap] == ["box", "keypoints"]
    assert cli.main(["weights"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in listed)
    assert "tree crowns" in text and "generated shapes" in text


def test_unknown_published_names_are_rejected():
    assert is_published("torchvision/no") and not is_published("weights.pt")
    with pytest.raises(CheckpointError, match="expected one of torchvision/fasterrcnn"):
        load_published("torchvision/no")


def test_eval_rejects_torchvision_detectors(capsys):
    assert cli.main(["eval", "--weights", "torchvision/maskrcnn_resnet50_fpn"]) == 2
    expected = "--weights: expected a detector of this package, got one of torchvision"
    assert capsys.readouterr().err == f"detops: error: {expected}\n"


def test_missing_or_damaged_weights_raise(cache):
    name = "torchvision/ssdlite320_mobilenet_v3_large"
    message = r"cannot be downloaded \(<urlopen error no network>\): put https://"
    with pytest.raises(CheckpointError, match=message):
        load_published(name)
    file = networks.cache_path("ssdlite320_mobilenet_v3_large")
    file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match=rf"{file.parent}.*: damaged"):
        load_published(name)
