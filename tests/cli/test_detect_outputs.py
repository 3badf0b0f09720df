"""Output formats of `detops detect`, and the selection of classes."""

import csv
import io
import json

import detect_command
import numpy as np
import pytest
import torch
from detect_command import HEIGHT, WIDTH, OneObject
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pycocotools.coco import COCO

from detops.engine import Detector
from detops.engine.formats import coco_image_ids, write_crops, write_json, write_yolo

detect, picture = detect_command.detect, detect_command.image_file  # fixtures


class FindsCatAndDog(OneObject):
    """Finds a cat and a dog in every image."""

    def detections(self, image):
        return {
            "boxes": torch.tensor([[2.0, 3, 12, 9], [20, 10, 40, 30]]),
            "labels": torch.tensor([1, 2]),
            "scores": torch.tensor([0.75, 0.5]),
        }


@pytest.fixture
def cat_and_dog_detector(monkeypatch):
    detector = Detector(FindsCatAndDog(), ["cat", "dog"], device="cpu")
    monkeypatch.setattr(Detector, "from_checkpoint", lambda *_: detector)


def test_all_output_formats_agree(detect, picture, tmp_path, cat_and_dog_detector):
    images = [picture("a.png"), picture("b.png")]
    options = ["--json", "o.json", "--csv", "t/o.csv", "--coco", "c.json"]
    files = [tmp_path / value if i % 2 else value for i, value in enumerate(options)]
    folders = ["--yolo", tmp_path / "yolo", "--crops", tmp_path / "crops"]
    assert detect(*images, *files, *folders)[0] == 0
    entries = json.loads((tmp_path / "o.json").read_text())
    lines = (tmp_path / "out" / "detections.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == entries and len(entries) == 2

    rows = list(csv.DictReader((tmp_path / "t" / "o.csv").open()))
    found = [d | {"image": entry["image"]} for entry in entries for d in entry["detections"]]
    assert [
        (row["image"], row["name"], int(row["label"]), float(row["score"])) for row in rows
    ] == [(d["image"], d["name"], d["label"], d["score"]) for d in found]
    assert [[float(row[k]) for k in ("x1", "y1", "x2", "y2")] for row in rows] == [
        d["box"] for d in found
    ]
    assert all(row["frame"] == "" for row in rows)

    yolo = (tmp_path / "yolo" / "b.txt").read_text().splitlines()
    numbers = [[float(number) for number in line.split()] for line in yolo]
    assert numbers[0] == pytest.approx([0, 7 / 40, 6 / 30, 10 / 40, 6 / 30, 0.75], abs=1e-6)
    assert numbers[1] == pytest.approx([1, 30 / 40, 20 / 30, 20 / 40, 20 / 30, 0.5], abs=1e-6)

    crops = sorted(path.relative_to(tmp_path / "crops") for path in tmp_path.glob("crops/*/*"))
    assert [str(path) for path in crops] == [f"cat/{i}_1.png" for i in "ab"] + [
        f"dog/{i}_2.png" for i in "ab"
    ]
    assert Image.open(tmp_path / "crops" / "dog" / "a_2.png").size == (20, 20)

    truth = COCO()
    truth.dataset = {
        "images": [{"id": 1, "width": WIDTH, "height": HEIGHT}, {"id": 2}],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [],
    }
    truth.createIndex()
    loaded = truth.loadRes(str(tmp_path / "c.json")).loadAnns(range(1, 5))
    assert [each["bbox"] for each in loaded] == [[2, 3, 10, 6], [20, 10, 20, 20]] * 2
    assert [each["image_id"] for each in loaded] == [1, 1, 2, 2]


def test_coco_output_has_masks_and_keypoints(detect, picture, tmp_path):
    assert detect(picture("000000000139.png"), "--coco", tmp_path / "c.json")[0] == 0
    (result,) = json.loads((tmp_path / "c.json").read_text())
    assert result["image_id"] == 139 and result["category_id"] == 1
    assert result["segmentation"]["size"] == [HEIGHT, WIDTH]
    assert len(result["keypoints"]) == 51


def test_image_ids_come_from_file_names_or_their_order():
    assert coco_image_ids(["x/7.jpg", "x/0012.png"]) == {"x/7.jpg": 7, "x/0012.png": 12}
    # If two files have the same number, the order counts.
    assert list(coco_image_ids(["7.jpg", "07.png"]).values()) == [1, 2]
    assert list(coco_image_ids(["7.jpg", "²."]).values()) == [1, 2]
    assert coco_image_ids([]) == {}


def test_outputs_without_detections_are_empty(detect, picture, tmp_path, cat_and_dog_detector):
    files = [tmp_path / name for name in ("o.json", "o.csv", "c.json")]
    options = [*zip(("--json", "--csv", "--coco"), files, strict=True)]
    arguments = [each for option in options for each in option]
    yolo = tmp_path / "yolo"
    status, lines, errors = detect(
        picture("a.png"), "--score-threshold", "0.9", *arguments, "--yolo", yolo
    )
    assert status == 0 and "0 found" in lines[0] and errors[-1] == "found: nothing"
    assert json.loads(files[0].read_text())[0]["detections"] == []
    assert files[1].read_text().count("\n") == 1 and json.loads(files[2].read_text()) == []
    assert (yolo / "a.txt").read_text() == ""


def test_classes_option_keeps_only_its_classes(detect, picture, tmp_path, cat_and_dog_detector):
    file = tmp_path / "o.json"
    for batch in ("1", "2"):
        images = picture("a.png"), picture("b.png")
        status, _, errors = detect(*images, "--classes", "Dog", "--json", file, "--batch", batch)
        assert status == 0 and errors[-1] == "found: 2 dog"
        for entry in json.loads(file.read_text()):
            assert [found["name"] for found in entry["detections"]] == ["dog"]
    status, _, errors = detect(*images, "--classes", "dog,horse")
    assert status == 2
    assert errors[-1] == "detops: error: --classes: no class horse; there are cat, dog"


def test_without_pictures_option_skips_drawing(detect, picture, tmp_path):
    assert detect(picture("a.png"), "--without-pictures")[0] == 0
    assert not list((tmp_path / "out").glob("*.png"))
    (line,) = (tmp_path / "out" / "detections.jsonl").read_text().splitlines()
    assert "picture" not in json.loads(line)


boxes = st.lists(st.tuples(*[st.floats(-1e9, 1e9, width=32)] * 4), max_size=5)


@given(boxes)
def test_any_boxes_are_written_as_crops_and_yolo(tmp_path_factory, boxes):
    folder = tmp_path_factory.mktemp("odd")
    found = {
        "boxes": torch.tensor(boxes).reshape(-1, 4),
        "labels": torch.ones(len(boxes), dtype=torch.int64),
        "scores": torch.ones(len(boxes)),
        "names": ["../a/b"] * len(boxes),
    }
    pixels = torch.zeros(3, 7, 5, dtype=torch.uint8)
    write_crops(folder / "crops", "x", pixels, found)
    for path in folder.glob("crops/*/*"):
        assert path.parent.name == "___a_b" and np.prod(Image.open(path).size) > 0
    write_yolo(folder / "x.txt", pixels.shape, found)
    assert len((folder / "x.txt").read_text().splitlines()) == len(boxes)


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers()), max_size=4))
def test_written_array_is_valid_json(entries):
    file = io.StringIO()
    write_json(file, iter(entries), [])
    assert json.loads(file.getvalue()) == entries
    assert file.getvalue().count("\n") == (len(entries) + 2 if entries else 1)
