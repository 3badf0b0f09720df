# SPDX-License-Identifier: MIT
"""Average precision of boxes, masks and keypoints."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from detops import cli
from detops.cli.options import ASSETS
from detops.data import load_datasets
from detops.data.masks import to_rle
from detops.engine import OutputError, coco_metrics
from detops.engine.coco_inputs import complete_truth
from detops.engine.command import _evaluate_all
from detops.engine.evaluate import to_coco


def truth_with_objects(count):
    """Returns the truth of one image with `count` objects, in rows."""
    boxes = [[12 * (i % 50), 12 * (i // 50), 10, 10] for i in range(count)]
    return {
        "images": [{"id": 1, "file_name": "a.png", "width": 600, "height": 600}],
        "categories": [{"id": 5, "name": "tree"}],
        "annotations": [
            {"id": i, "image_id": 1, "category_id": 5, "bbox": box, "area": 100, "iscrowd": 0}
            for i, box in enumerate(boxes)
        ],
    }


def perfect_detections(truth):
    return [
        {"image_id": 1, "category_id": 5, "bbox": a["bbox"], "score": 1 - i / 1000}
        for i, a in enumerate(truth["annotations"])
    ]


def test_perfect_detections_have_ap_1():
    truth = truth_with_objects(20)
    metrics = coco_metrics(truth, perfect_detections(truth))
    assert [metrics[key] for key in ("AP", "AP50", "AP75", "AR")] == pytest.approx([1, 1, 1, 1])
    assert metrics["max_detections"] == 100 and metrics["objects"] == 20


def test_coco_metrics_ignore_crowds():
    truth = truth_with_objects(5)
    found = perfect_detections(truth)
    truth["annotations"][0]["iscrowd"] = 1
    metrics = coco_metrics(truth, found)
    assert metrics["objects"] == 4 and metrics["detections"] == 5
    assert metrics["AP"] == pytest.approx(1)


def test_detection_limit_grows_with_the_objects_per_image():
    truth = truth_with_objects(150)
    metrics = coco_metrics(truth, perfect_detections(truth))
    assert metrics["max_detections"] == 300 and metrics["AP"] == pytest.approx(1)
    assert metrics["standard"]["max_detections"] == 100
    assert metrics["standard"]["AR"] == pytest.approx(2 / 3)
    assert coco_metrics(truth, perfect_detections(truth), 30)["AR"] == pytest.approx(0.2)


def test_ap_of_each_class_averages_to_the_whole():
    truth = truth_with_objects(6)
    truth["categories"] = [{"id": 5, "name": "tree"}, {"id": 2, "name": "car"}, {"id": 9}]
    for annotation in truth["annotations"][:2]:
        annotation["category_id"] = 2
    found = perfect_detections(truth)  # all as trees
    metrics = coco_metrics(truth, found)
    classes = metrics["classes"]
    assert list(classes) == ["car", "tree", "9"]
    assert classes["car"]["AP"] == 0 and classes["9"]["AP"] is None
    assert 0 < classes["tree"]["AP"] < 1
    for key in ("AP", "AP50", "AP75", "AR"):
        assert metrics[key] == pytest.approx(classes["tree"][key] / 2)


def test_coco_metrics_reflect_missed_objects_and_empty_inputs():
    truth = truth_with_objects(10)
    metrics = coco_metrics(truth, perfect_detections(truth)[:5])
    assert metrics["AP50"] == pytest.approx(51 / 101) and metrics["AR"] == pytest.approx(0.5)
    assert coco_metrics(truth, [])["AP"] == 0
    assert coco_metrics(truth_with_objects(0), [])["AP"] is None
    with pytest.raises(ValueError, match="max_detections"):
        coco_metrics(truth, [], 0)


def test_truth_may_lack_area_iscrowd_and_annotation_ids():
    truth = with_masks(truth_with_objects(4))
    for image in truth["images"]:
        del image["width"], image["height"]
    for annotation in truth["annotations"]:
        del annotation["area"], annotation["iscrowd"], annotation["id"]
    metrics = coco_metrics(truth, perfect_detections(truth))
    assert metrics["AP"] == pytest.approx(1) and metrics["objects"] == 4


def test_detections_without_masks_or_keypoints_miss_them():
    truth = with_masks(truth_with_objects(4))
    truth["annotations"] = [a | {"keypoints": [1, 2, 2]} for a in truth["annotations"]]
    found = perfect_detections(truth)
    kinds = ("bbox", "segm", "keypoints")
    metrics = coco_metrics(truth, found, iou_types=kinds)
    assert metrics["AP"] == pytest.approx(1)
    assert metrics["segm"]["AP"] == metrics["keypoints"]["AP"] == 0
    for part in ("segmentation", "keypoints"):
        found[0][part] = truth["annotations"][0][part]
    metrics = coco_metrics(truth, found, iou_types=kinds)
    assert metrics["segm"]["AR"] == metrics["keypoints"]["AR"] == pytest.approx(0.25)


def test_missing_area_comes_from_the_mask_or_else_the_box():
    (full,) = with_masks(truth_with_objects(1))["annotations"]
    (half,) = with_masks(truth_with_objects(1), shrink=5)["annotations"]
    truth = truth_with_objects(1)
    for annotation, area in ((full, 100), (half, 50), (full | {"segmentation": None}, 100)):
        for missing_value in (None, "", float("nan")):
            truth["annotations"] = [annotation | {"area": missing_value}]
            assert complete_truth(truth)["annotations"][0]["area"] == area
    full_row = {"size": [600, 600], "counts": [0, 600, 359400]}
    for image in truth["images"]:
        image["width"] = None
    truth["annotations"] = [half | {"area": None}]
    assert complete_truth(truth)["annotations"][0]["area"] == 100  # no size to draw the polygon in
    truth["annotations"] = [full | {"area": None, "segmentation": full_row}]
    assert complete_truth(truth)["annotations"][0]["area"] == 600


UNUSUAL_VALUES = {
    "iscrowd": [None, 0.0, False, "0", "false", np.int64(0), torch.tensor(0)],
    "area": [None, "", "100", np.float32(100), torch.tensor(100)],
    "bbox": [None, [], (0, 0, 10, 10), np.array([0, 0, 10, 10]), torch.tensor([0, 0, 10, 10])],
    "image_id": [1.0, np.int64(1), np.float32(1), torch.tensor(1)],
    "category_id": [5.0, np.int64(5), np.float32(5), torch.tensor(5)],
    "id": [None, 7.0, "x"],
    "num_keypoints": [None, "", 1.0],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in UNUSUAL_VALUES.items() for value in values],
)
def test_metrics_read_unusual_truth_values_like_the_loaders(field, value):
    truth = with_masks(truth_with_objects(3))
    for annotation in truth["annotations"]:
        annotation["keypoints"] = [*annotation["bbox"][:2], 2]
    found = [a | {"score": 0.5} for a in truth["annotations"]]
    kinds = ("bbox", "segm", "keypoints")
    expected = coco_metrics(truth, found, iou_types=kinds)
    assert expected["AP"] == expected["keypoints"]["AP"] == pytest.approx(1)
    truth["annotations"][0] |= {field: value}
    assert coco_metrics(truth, found, iou_types=kinds) == expected
    if field in ("image_id", "category_id"):
        found[0] |= {field: value}
        assert coco_metrics(truth, found, iou_types=kinds) == expected


@pytest.mark.parametrize("number", [float, np.float64, np.float32, np.int64, torch.tensor])
def test_ids_match_across_number_types(number):
    truth, original = truth_with_objects(60), truth_with_objects(60)
    for entries, key in ((truth["images"], "id"), (truth["categories"], "id")):
        entries[0][key] = number(entries[0][key])
    for annotation in truth["annotations"][:30]:
        annotation["image_id"] = number(1)
    # The default limit is twice the 60 objects, if all belong to one image.
    assert coco_metrics(truth, perfect_detections(original)) == coco_metrics(
        original, perfect_detections(original)
    )
    assert coco_metrics(truth, perfect_detections(truth)) == coco_metrics(
        original, perfect_detections(original)
    )
    assert coco_metrics(truth, perfect_detections(truth))["max_detections"] == 120


def test_text_and_number_image_ids_are_evaluated_together():
    truth = truth_with_objects(4)
    truth["images"].append(truth["images"][0] | {"id": "b"})
    truth["annotations"][3]["image_id"] = "b"
    found = [a | {"score": 0.5} for a in truth["annotations"]]
    assert coco_metrics(truth, found)["AP"] == pytest.approx(1)
    assert coco_metrics(truth, perfect_detections(truth))["AR"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"iscrowd": "maybe"}, "annotation 0: iscrowd is not 0 or 1: 'maybe'"),
        ({"bbox": None}, "annotation 0: box is not four finite numbers: bbox None"),
        ({"bbox": [1, 2, 3]}, r"box is not four finite numbers: bbox \[1, 2, 3\]"),
        ({"bbox": None, "segmentation": [[1, 2]]}, "annotation 0: polygon 1 has 2 numbers"),
        ({"image_id": None}, "annotation 0: expected a value of image_id, got None"),
        ({"category_id": [5]}, r"annotation 0: expected a value of category_id, got \[5\]"),
    ],
)
def test_broken_truth_raises_and_names_the_annotation(change, message):
    truth = truth_with_objects(2)
    truth["annotations"][0] |= change
    with pytest.raises(ValueError, match=f"^ground_truth: .*{message}"):
        coco_metrics(truth, [])


@pytest.mark.parametrize("field", ["image_id", "category_id", "score"])
def test_incomplete_detections_raise_and_name_the_entry(field):
    truth = truth_with_objects(2)
    found = perfect_detections(truth)
    del found[1][field]
    with pytest.raises(ValueError, match=r"detections\[1\]: expected image_id, .*, got \{"):
        coco_metrics(truth, found)


def test_detections_without_boxes_use_those_of_their_masks():
    truth = with_masks(truth_with_objects(2))
    found = [a | {"score": 0.5} for a in truth["annotations"]]
    del found[0]["bbox"], found[1]["bbox"], found[1]["segmentation"]
    metrics = coco_metrics(truth, found, iou_types=("bbox", "segm"))
    assert metrics["AR"] == metrics["segm"]["AR"] == pytest.approx(0.5)


@pytest.mark.parametrize("sides", [{}, {"width": 600.0, "height": 600.0}, {"width": 0}])
def test_only_polygons_require_image_sizes(sides):
    truth = with_masks(truth_with_objects(2))
    truth["images"] = [{"id": 1} | sides]
    found = [a | {"score": 0.5} for a in truth["annotations"]]
    if len(sides) < 2:
        with pytest.raises(ValueError, match="image 1: expected the width and height that its po"):
            coco_metrics(truth, found, iou_types=("segm",))
        for entry in (*truth["annotations"], *found):
            polygons = entry["segmentation"]
            entry["segmentation"] = to_rle(polygons, 600, 600) | {"size": [600.0, 600.0]}
    assert coco_metrics(truth, found, iou_types=("segm",))["segm"]["AP"] == pytest.approx(1)


def with_masks(truth, shrink=0):
    """Adds a polygon to each box, narrower by `shrink` pixels."""
    entries = [
        a | {"segmentation": [[x, y, x + w - shrink, y, x + w - shrink, y + h, x, y + h]]}
        for a in truth["annotations"]
        for x, y, w, h in [a["bbox"]]
    ]
    return truth | {"annotations": entries}


def test_masks_are_evaluated_in_addition_to_boxes():
    truth = with_masks(truth_with_objects(4), shrink=4)
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in truth_boxes(truth)]).float(),
        "labels": torch.ones(4, dtype=torch.int64),
        "scores": torch.ones(4),
        "masks": torch.zeros(4, 1, 600, 600, dtype=torch.bool),
    }
    for mask, (x, y, w, h) in zip(found["masks"], truth_boxes(truth), strict=True):
        mask[0, y : y + h, x : x + w] = True
    metrics = coco_metrics(truth, to_coco(found, 1, (5,)), iou_types=("bbox", "segm"))
    # Masks of 10 x 10 pixels on objects of 6 x 10: an IoU of 0.6 meets three of ten thresholds.
    assert metrics["AP"] == pytest.approx(1)
    assert metrics["segm"]["AP50"] == pytest.approx(1) and metrics["segm"]["AP75"] == 0
    assert metrics["segm"]["standard"]["max_detections"] == 100
    assert coco_metrics(truth, [], iou_types=("bbox", "segm"))["segm"]["AP"] == 0
    assert coco_metrics(truth_with_objects(4), [], iou_types=("segm",))["segm"]["AP"] is None
    with pytest.raises(ValueError, match=r"iou_types: .*\['mask'\]"):
        coco_metrics(truth, [], iou_types=("mask",))


def truth_boxes(truth):
    return [a["bbox"] for a in truth["annotations"]]


@pytest.mark.parametrize("count", [17, 5])
def test_keypoints_are_evaluated_in_addition_to_boxes(count):
    truth = truth_with_objects(3)
    points = torch.rand(3, count, 3) * 8
    points[:, :, 2] = 2
    for annotation, keypoints in zip(truth["annotations"], points, strict=True):
        annotation["keypoints"] = keypoints.flatten().tolist()
    found = {
        "boxes": torch.tensor([[x, y, x + w, y + h] for x, y, w, h in truth_boxes(truth)]).float(),
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


def test_splits_of_one_file_get_distinct_result_names(tmp_path, monkeypatch):
    for folder, split in (("a", "val"), ("a", "test"), ("b", "val")):
        folder_path = tmp_path / folder / split
        folder_path.mkdir(parents=True)
        Image.new("RGB", (40, 30)).save(folder_path / "a.png")
        text = "{val: val, test: test, names: [tree]}"
        for name in ("data.yaml", "other.yaml"):
            (tmp_path / folder / name).write_text(text)

    def result_names(*paths):
        return list(_evaluate_all(None, load_datasets([f"{tmp_path}/{p}" for p in paths])))

    monkeypatch.setattr("detops.engine.command.evaluate", lambda *arguments, **options: {})
    a, b = "a/data.yaml?split=val", "a/data.yaml?split=test"
    assert result_names(a, b, "a/other.yaml?split=val") == [
        "data.yaml 1",
        "data.yaml 2",
        "other.yaml",
    ]
    full_paths = [f"{tmp_path}/a/data.yaml", f"{tmp_path}/b/data.yaml"]
    assert result_names(a, "b/data.yaml?split=val") == full_paths
    assert result_names(a, b, "b/data.yaml?split=val") == [
        f"{full_paths[0]} 1",
        f"{full_paths[0]} 2",
        full_paths[1],
    ]


def test_results_are_written_even_if_plots_fail(tmp_path, monkeypatch):
    def fail(*arguments):
        raise OutputError("plots: cannot be written")

    monkeypatch.setattr("detops.engine.command.plot_all", fail)
    weights = ["--weights", str(ASSETS / "shapes" / "weights.pt"), "--device", "cpu"]
    output = ["--output", str(tmp_path / "a.json"), "--plots", str(tmp_path)]
    data = ["--data", "shapes:test?length=1&size=48"]
    assert cli.main(["eval", *weights, *data, *output]) == 2
    assert "AP" in json.loads((tmp_path / "a.json").read_text())
