# SPDX-License-Identifier: MIT
"""Average precision of boxes, masks and keypoints."""

import json

import pytest
import torch
from PIL import Image

from detops import cli
from detops.cli.options import ASSETS
from detops.data import load_datasets
from detops.engine import OutputError, coco_metrics
from detops.engine.command import _evaluate_all
from detops.engine.evaluate import to_coco


def crowd(count):
    """An image with so many objects, in rows."""
    boxes = [[12 * (i % 50), 12 * (i // 50), 10, 10] for i in range(count)]
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 600, "height": 600}],
        "categories": [{"id": 5, "name": "tree"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 5, "bbox": box, "area": 100, "iscrowd": 0}
            for i, box in enumerate(boxes)
        ],
    }


def answers(truth):
    return [
        {"image_id": 1, "category_id": 5, "bbox": a["bbox"], "score": 1 - i / 1000}
        for i, a in enumerate(truth["annotations"])
    ]


def test_perfect_detections():
    truth = crowd(20)
    metrics = coco_metrics(truth, answers(truth))
    assert [metrics[key] for key in ("AP", "AP50", "AP75", "AR")] == pytest.approx([1, 1, 1, 1])
    assert metrics["max_detections"] == 100 and metrics["objects"] == 20


def test_crowds_are_not_counted():
    truth = crowd(5)
    found = answers(truth)
    truth["annotations"][0]["iscrowd"] = 1
    metrics = coco_metrics(truth, found)
    assert metrics["objects"] == 4 and metrics["detections"] == 5
    assert metrics["AP"] == pytest.approx(1)


def test_more_objects_than_the_standard_limit():
    truth = crowd(150)
    metrics = coco_metrics(truth, answers(truth))
    assert metrics["max_detections"] == 300 and metrics["AP"] == pytest.approx(1)
    assert metrics["standard"]["max_detections"] == 100
    assert metrics["standard"]["AR"] == pytest.approx(2 / 3)
    assert coco_metrics(truth, answers(truth), 30)["AR"] == pytest.approx(0.2)


def test_half_right_and_empty():
    truth = crowd(10)
    metrics = coco_metrics(truth, answers(truth)[:5])
    assert metrics["AP50"] == pytest.approx(51 / 101) and metrics["AR"] == pytest.approx(0.5)
    assert coco_metrics(truth, [])["AP"] == 0
    assert coco_metrics(crowd(0), [])["AP"] is None
    with pytest.raises(ValueError, match="max_detections"):
        coco_metrics(truth, [], 0)


def with_masks(truth, shrink=0):
    """The same with a polygon of each box, narrower by so many pixels."""
    entries = [
        a | {"segmentation": [[x, y, x + w - shrink, y, x + w - shrink, y + h, x, y + h]]}
        for a in truth["annotations"]
        for x, y, w, h in [a["bbox"]]
    ]
    return truth | {"annotations": entries}


def test_masks_are_rated_beside_boxes():
    truth = with_masks(crowd(4), shrink=4)
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in boxes_of(truth)]).float(),
        "labels": torch.ones(4, dtype=torch.int64),
        "scores": torch.ones(4),
        "masks": torch.zeros(4, 1, 600, 600, dtype=torch.bool),
    }
    for mask, (x, y, w, h) in zip(found["masks"], boxes_of(truth), strict=True):
        mask[0, y : y + h, x : x + w] = True
    metrics = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "segm"))
    # Masks of 10 x 10 pixels on objects of 6 x 10: their IoU is 0.6, right at three of ten limits.
    assert metrics["AP"] == pytest.approx(1)
    assert metrics["segm"]["AP50"] == pytest.approx(1) and metrics["segm"]["AP75"] == 0
    assert metrics["segm"]["standard"]["max_detections"] == 100
    assert coco_metrics(truth, [], iou_types=("bbox", "segm"))["segm"]["AP"] == 0
    assert coco_metrics(crowd(4), [], iou_types=("segm",))["segm"]["AP"] is None
    with pytest.raises(ValueError, match=r"iou_types: .*\['mask'\]"):
        coco_metrics(truth, [], iou_types=("mask",))


def boxes_of(truth):
    return [a["bbox"] for a in truth["annotations"]]


@pytest.mark.parametrize("count", [17, 5])
def test_keypoints_are_rated_beside_boxes(count):
    truth = crowd(3)
    points = torch.rand(3, count, 3) * 8
    points[:, :, 2] = 2
    for annotation, own in zip(truth["annotations"], points, strict=True):
        annotation["keypoints"] = own.flatten().tolist()
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in boxes_of(truth)]).float(),
        "labels": torch.ones(3, dtype=torch.int64),
        "scores": torch.tensor([0.9, 0.8, 0.7]),
        "keypoints": points.clone(),
    }
    right = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "keypoints"))
    assert right["keypoints"]["AP"] == pytest.approx(1)
    assert right["keypoints"]["standard"]["max_detections"] == 20
    found["keypoints"] += 50
    wrong = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "keypoints"))
    assert wrong["keypoints"]["AP"] == 0 and wrong["AP"] == pytest.approx(1)


def test_splits_of_one_file_are_rated_apart(tmp_path, monkeypatch):
    for folder, split in (("a", "val"), ("a", "test"), ("b", "val")):
        place = tmp_path / folder / split
        place.mkdir(parents=True)
        Image.new("RGB", (40, 30)).save(place / "a.png")
        text = "{val: val, test: test, names: [tree]}"
        for name in ("data.yaml", "other.yaml"):
            (tmp_path / folder / name).write_text(text)

    def rated(*places):
        return list(_evaluate_all(None, load_datasets([f"{tmp_path}/{p}" for p in places])))

    monkeypatch.setattr("detops.engine.command.evaluate", lambda *arguments, **options: {})
    a, b = "a/data.yaml?split=val", "a/data.yaml?split=test"
    assert rated(a, b, "a/other.yaml?split=val") == ["data.yaml 1", "data.yaml 2", "other.yaml"]
    whole = [f"{tmp_path}/a/data.yaml", f"{tmp_path}/b/data.yaml"]
    assert rated(a, "b/data.yaml?split=val") == whole
    assert rated(a, b, "b/data.yaml?split=val") == [f"{whole[0]} 1", f"{whole[0]} 2", whole[1]]


def test_plots_that_cannot_be_written_cost_no_results(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OutputError("plots: cannot be written")

    monkeypatch.setattr("detops.engine.command.plot_all", fail)
    weights = ["--weights", str(ASSETS / "shapes" / "weights.pt"), "--device", "cpu"]
    output = ["--output", str(tmp_path / "a.json"), "--plots", str(tmp_path)]
    data = ["--data", "shapes:test?length=1&size=48"]
    assert cli.main(["eval", *weights, *data, *output]) == 2
    assert "AP" in json.loads((tmp_path / "a.json").read_text())
