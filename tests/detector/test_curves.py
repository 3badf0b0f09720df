# SPDX-License-Identifier: MIT
"""Precision-recall curves, confusion matrices, and their plots."""

import json
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from detops.data import CocoDetection
from detops.engine import coco_metrics
from detops.engine.curves import confusion_matrix, precision_recall
from detops.engine.plots import MATPLOTLIB_MISSING, compare, draw_objects, plot_all, plot_training
from detops.visualize import contact_sheet

SIDE = 60


def truth(*objects):
    """Returns a COCO dict of one image; objects are (category id, box) or (id, box, iscrowd)."""
    entries = [
        {"id": i, "image_id": "a", "category_id": category, "bbox": list(box), "iscrowd": crowd}
        | {"area": box[2] * box[3]}
        for i, (category, box, crowd) in enumerate([(*o, 0)[:3] for o in objects], start=1)
    ]
    return {
        "images": [{"id": "a", "file_name": "a.png", "width": SIDE, "height": SIDE}],
        "categories": [{"id": 3, "name": "cat"}, {"id": 8, "name": "dog"}],
        "annotations": entries,
    }


def found(*detections):
    return [
        {"image_id": "a", "category_id": category, "bbox": list(box), "score": score}
        for category, box, score in detections
    ]


BOX_A, BOX_B, BOX_C = (0, 0, 10, 10), (20, 20, 10, 10), (40, 40, 10, 10)


def test_confusion_matrix_counts_matches_and_errors():
    objects = truth((3, BOX_A), (8, BOX_B), (8, BOX_C))
    detections = found(
        (3, BOX_A, 0.9),  # a cat
        (3, BOX_B, 0.8),  # a dog classified as a cat
        (8, (0, 40, 10, 10), 0.7),  # no object there
        (8, BOX_C, 0.4),  # below the score threshold: missed
        (8, BOX_A, 0.6),  # a second detection of the cat
    )
    assert confusion_matrix(objects, detections).tolist() == [[1, 0, 0], [1, 0, 1], [0, 2, 0]]
    assert confusion_matrix(objects, detections, 0.3).tolist() == [[1, 0, 0], [1, 1, 0], [0, 2, 0]]


def test_confusion_matrix_ignores_crowds():
    objects = truth((3, (0, 0, 30, 30), 1), (8, BOX_C))
    detections = found((3, BOX_A, 0.9), (8, BOX_C, 0.9))
    assert confusion_matrix(objects, detections).tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_confusion_matrix_accepts_no_objects_or_detections():
    assert confusion_matrix(truth(), []).sum() == 0
    assert confusion_matrix(truth((3, BOX_A)), []).tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 0]]
    assert confusion_matrix(truth(), found((8, BOX_A, 0.9)))[2].tolist() == [0, 1, 0]


boxes = st.tuples(*[st.integers(0, 30)] * 2, *[st.integers(1, 30)] * 2)
categories = st.sampled_from([3, 8])


@given(
    st.lists(st.tuples(categories, boxes), max_size=8),
    st.lists(st.tuples(categories, boxes, st.floats(0, 1)), max_size=8),
)
def test_confusion_matrix_counts_every_object_and_detection(objects, detections):
    matrix = confusion_matrix(truth(*objects), found(*detections))
    confident = [category for category, _, score in detections if score >= 0.5]
    for i, category in enumerate((3, 8)):
        assert matrix[i].sum() == sum(kind == category for kind, _ in objects)
        assert matrix[:, i].sum() == confident.count(category)
    assert matrix[2, 2] == 0


@given(
    st.lists(st.tuples(categories, boxes), min_size=1, max_size=8),
    st.lists(st.tuples(categories, boxes, st.floats(0, 1)), max_size=8),
)
def test_areas_under_the_curves_equal_the_coco_metrics(objects, detections):
    objects, detections = truth(*objects), found(*detections)
    recall, curves = precision_recall(objects, detections)
    metrics = coco_metrics(objects, detections)
    assert len(recall) == 101 and recall[0] == 0 and recall[-1] == 1
    areas = [curve.mean() for curve in curves.values()]
    assert areas == pytest.approx([metrics["AP50"], metrics["AP75"], metrics["AP"]])


def test_precision_recall_is_empty_without_objects():
    assert precision_recall(truth(), found((3, BOX_A, 0.9)))[1] == {}


@pytest.fixture
def dataset(tmp_path):
    Image.new("RGB", (SIDE, SIDE), (20, 120, 20)).save(tmp_path / "a.png")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(truth((3, BOX_A), (8, BOX_B))))
    return CocoDetection(path)


def test_compare_draws_truth_left_and_detections_right(dataset):
    empty = compare(dataset, [])
    confident = compare(dataset, found((3, BOX_C, 0.9)))
    unconfident = compare(dataset, found((3, BOX_C, 0.4)))
    assert empty.size == (1920, 960) and unconfident.tobytes() == empty.tobytes()
    left, right = (0, 0, 960, 960), (960, 0, 1920, 960)
    assert confident.crop(left).tobytes() == empty.crop(left).tobytes()
    assert confident.crop(right).tobytes() != empty.crop(right).tobytes()


def test_compare_draws_detected_keypoints(dataset):
    detections = found((3, BOX_C, 0.9))
    without = compare(dataset, detections)
    detections[0]["keypoints"] = [10, 50, 1, 20, 50, 1]
    left, right = (0, 0, 960, 960), (960, 0, 1920, 960)
    drawn = compare(dataset, detections)
    assert drawn.crop(left).tobytes() == without.crop(left).tobytes()
    assert drawn.crop(right).tobytes() != without.crop(right).tobytes()


def test_compare_draws_images_that_contain_only_crowds(tmp_path):
    Image.new("RGB", (SIDE, SIDE), (20, 120, 20)).save(tmp_path / "a.png")
    path = tmp_path / "a.json"
    path.write_text(json.dumps(truth((3, BOX_A, 1))))
    assert compare(CocoDetection(path), []).size == (1920, 960)


@pytest.mark.parametrize("detections", [[], [(3, BOX_A, 0.9), (8, BOX_C, 0.8)]])
def test_plot_all_writes_three_plots_per_dataset(dataset, tmp_path, detections):
    reports = []
    plot_all(tmp_path / "plots", {"a/b?c": (dataset, found(*detections))}, reports.append)
    folder = tmp_path / "plots" / "a_b_c"
    assert reports == [] and len(list(folder.iterdir())) == 3
    for path in folder.iterdir():
        pixels = np.asarray(Image.open(path).convert("RGB"))
        assert pixels.std() > 5, path


def test_plots_are_skipped_without_matplotlib(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    reports = []
    plot_all(tmp_path / "plots", {"a": (dataset, [])}, reports.append)
    assert reports == [MATPLOTLIB_MISSING] and not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    "records",
    [
        [],
        [{"step": 1, "loss": None, "loss_a": None, "lr": 0.1, "skipped": True}],
        [
            {"step": 1, "loss": 2.0, "loss_a": 2.0, "lr": 0.1},
            {"step": 2, "loss": 1.0, "loss_a": 1.0, "lr": 0.1}
            | {"evaluation": {"v": {"AP": 0.5, "AP50": None}}},
        ],
    ],
)
def test_plot_training_accepts_any_metrics_records(tmp_path, records):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    plot_training(metrics, tmp_path / "results.png")
    assert Image.open(tmp_path / "results.png").size == (840, 1080)


def test_plot_training_includes_the_final_evaluation(tmp_path):
    metrics, plots = tmp_path / "metrics.jsonl", [tmp_path / "a.png", tmp_path / "b.png"]
    metrics.write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n')
    plot_training(metrics, plots[0])
    plot_training(metrics, plots[1], {"step": 9, "evaluation": {"v": {"AP": 0.5, "AP50": 0.8}}})
    precision = (0, 720, 840, 1080)
    before, after = map(Image.open, plots)
    assert after.crop(precision).tobytes() != before.crop(precision).tobytes()


@pytest.mark.parametrize("side", [30, 60, 240])
def test_objects_are_drawn_at_the_size_of_the_sheet(dataset, side):
    image, target = dataset.image(0), dataset.target(0)
    masks = torch.zeros(2, SIDE, SIDE, dtype=torch.uint8)
    keypoints = torch.tensor([[[5.0, 5, 1]], [[25.0, 25, 1]]])
    parts = target | {"masks": masks, "keypoints": keypoints}
    drawn = draw_objects(image, parts, dataset.names, side)
    assert drawn.size == (side, side)
    empty = {key: value[:0] for key, value in parts.items() if key != "image_id"}
    assert draw_objects(image, empty, dataset.names, side).getcolors() == [
        (side * side, (20, 120, 20))
    ]
    # The lower half has no objects, and is the image.
    lower = drawn.crop((0, side * 5 // 6, side, side))
    assert lower.getcolors() == [(lower.width * lower.height, (20, 120, 20))]


@given(st.integers(0, 7), st.integers(1, 4))
def test_contact_sheet_scales_and_arranges_images(count, columns):
    images = [Image.new("RGB", (30, 5 + i), (200, 0, 0)) for i in range(count)]
    sheet = contact_sheet(images, columns, width=60)
    used = min(columns, max(1, count))
    assert sheet.size == (60, 60 // used * max(1, -(-count // used)))
    assert (np.asarray(sheet)[..., 1] == 0).any() == (count > 0)
