# SPDX-License-Identifier: MIT
"""Generated shapes, and drawing of masks."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from paths import environment
from torch.utils.data import DataLoader

from detops.data import CocoDetection, Shapes, export_coco
from detops.data.shapes import CLASSES, MIN_VISIBLE, PHOTOGRAPHS, _inside, draw_scene, export
from detops.visualize import draw_detections


def equal(first, second):
    (image, target), (image2, target2) = first, second
    same = all(torch.equal(target[key], target2[key]) for key in ("boxes", "labels", "masks"))
    return torch.equal(image, image2) and same


def test_shapes_item_has_consistent_boxes_and_masks():
    dataset = Shapes(length=8, size=(48, 80))
    for index in range(8):
        image, target = dataset[index]
        assert image.shape == (3, 48, 80) and image.dtype == torch.uint8
        masks, labels = target["masks"], target["labels"]
        assert masks.dtype == torch.uint8 and masks.shape == (len(labels), 48, 80)
        assert labels.dtype == torch.int64 and 1 <= labels.min() and labels.max() <= len(CLASSES)
        assert masks.sum(dim=0).max() <= 1  # each pixel belongs to the front shape
        for mask, box in zip(masks, target["boxes"], strict=True):
            rows, columns = mask.nonzero().unbind(1)
            bounds = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert box.tolist() == [float(side) for side in bounds]
    assert "masks" not in Shapes(length=1, size=48, masks=False)[0][1]


def test_items_depend_only_on_index_and_seed():
    dataset = Shapes(length=5, size=40)
    backwards = [Shapes(length=9, size=40)[index] for index in (4, 3, 2, 1, 0)][::-1]
    assert all(map(equal, (dataset[i] for i in range(5)), backwards))
    assert not equal(dataset[0], dataset[1])
    assert not equal(dataset[0], Shapes(length=5, size=40, seed=1)[0])
    assert equal(dataset[2], pickle.loads(pickle.dumps(dataset))[2])
    workers = DataLoader(dataset, batch_size=None, num_workers=2)
    assert all(map(equal, (dataset[i] for i in range(5)), workers))


def test_items_are_copies():
    dataset = Shapes(length=1, size=40)
    image, target = dataset[0]
    before = [image.clone(), {key: target[key].clone() for key in ("boxes", "labels", "masks")}]
    image.zero_(), target["masks"].zero_(), target["labels"].zero_()
    assert equal(before, dataset[0])


def test_splits_share_no_photograph():
    assert not set(PHOTOGRAPHS["train"]) & set(PHOTOGRAPHS["test"])
    assert not equal(Shapes("train", 1, 40)[0], Shapes("test", 1, 40)[0])


@pytest.mark.parametrize("size", [16, (17, 90), (300, 20)])
def test_shapes_support_any_image_size(size):
    dataset = Shapes(length=6, size=size, objects=12)
    for image, target in (dataset[index] for index in range(6)):
        assert image.shape[1:] == target["masks"].shape[1:] == dataset.size
        assert (target["masks"].sum(dim=(1, 2)) > 0).all()


def test_each_shape_has_its_geometric_area():
    ticks = np.linspace(-1.5, 1.5, 1201)
    u, v = np.meshgrid(ticks, ticks)
    thickness = 0.3
    areas = {
        "ellipse": math.pi,
        "rectangle": 4,
        "triangle": 3 * math.sqrt(3) / 4,
        "star": 5 * math.cos(2 * math.pi / 5) * math.tan(math.pi / 5),
        "ring": math.pi * (1 - (1 - 1.3 * thickness) ** 2),
        "cross": 8 * thickness - 4 * thickness**2,
    }
    for name in CLASSES:
        area = _inside(name, u, v, thickness).mean() * 9
        assert area == pytest.approx(areas[name], rel=0.02), name


def test_shapes_are_visible_occluded_and_cut_off():
    """All three occur, and every shape keeps enough pixels to be found."""
    touching = overlapping = 0
    for image, target in (Shapes(length=40, size=64)[index] for index in range(40)):
        height, width = image.shape[1:]
        x1, y1, x2, y2 = target["boxes"].unbind(1)
        touching += int(((x1 == 0) | (y1 == 0) | (x2 == width) | (y2 == height)).sum())
        boxes = target["boxes"]
        for i, mask in enumerate(target["masks"]):
            others = target["masks"][torch.arange(len(boxes)) != i].sum(dim=0)
            a, b, c, d = boxes[i].int().tolist()
            overlapping += int(others[b:d, a:c].sum() > 0.2 * mask.sum())
            # The smallest visible fraction of the smallest shape, a thin ring.
            assert mask.sum() >= MIN_VISIBLE * 30
    assert touching > 10 and overlapping > 10


def test_ground_truth_equals_the_item_targets():
    dataset = Shapes(length=3, size=48)
    truth = dataset.ground_truth()
    assert [c["name"] for c in truth["categories"]] == list(CLASSES) == list(dataset.names)
    for index in range(3):
        boxes = [a["bbox"] for a in truth["annotations"] if a["image_id"] == index]
        corners = [[x, y, x + w, y + h] for x, y, w, h in boxes]
        assert corners == dataset.target(index)["boxes"].tolist()
    areas = [a["area"] for a in truth["annotations"]]
    assert areas == [int(m.sum()) for i in range(3) for m in dataset.target(i)["masks"]]


@pytest.mark.slow
def test_shapes_export_is_read_back_unchanged(tmp_path):
    dataset = Shapes("test", 3, (40, 56), seed=7)
    path = export(tmp_path / "shapes", "test", 3, (40, 56), seed=7)
    exported = CocoDetection(path, masks=True)
    assert exported.names == dataset.names and len(exported) == 3
    assert all(equal(dataset[i], exported[i]) for i in range(3))
    assert export_coco(dataset, tmp_path / "other").read_text() == path.read_text()


def test_missing_scikit_image_is_reported(monkeypatch):
    from detops.data import shapes

    monkeypatch.setitem(__import__("sys").modules, "skimage", None)
    shapes._photograph.cache_clear()
    with pytest.raises(ImportError, match="pip install scikit-image"):
        Shapes(length=1, size=40)


def test_masks_are_drawn_over_the_image():
    image = torch.full((3, 60, 80), 90, dtype=torch.uint8)
    masks = torch.zeros(3, 60, 80, dtype=torch.bool)
    masks[0, 14:36, 14:36] = True
    masks[1, 50:, 70:] = True
    boxes = torch.tensor([[10.0, 10, 40, 40], [70, 50, 80, 60], [1, 1, 3, 3]])
    labels = torch.tensor([1, 2, 1])
    drawing = draw_detections(image, boxes, None, labels, masks=masks)
    without_masks = draw_detections(image, boxes, None, labels)
    inside, rim, outside = (50, 50), (28, 50), (120, 30)
    assert without_masks.getpixel(inside) == (90, 90, 90) == drawing.getpixel(outside)
    red, green, blue = drawing.getpixel(inside)  # translucent amber over grey
    assert 90 < blue + 60 and red > green > 90 > blue
    assert sum(map(abs, np.subtract(drawing.getpixel(rim), (90, 90, 90)))) > sum(
        map(abs, np.subtract((red, green, blue), (90, 90, 90)))
    )
    four_dimensions = draw_detections(
        image, boxes, None, labels, masks=masks[:, None].to(torch.uint8)
    )
    assert four_dimensions.tobytes() == drawing.tobytes()
    no_objects = draw_detections(image, boxes[:0], masks=masks[:0])
    assert no_objects.getpixel(inside) == (90, 90, 90)
    for invalid in (masks[:2], masks[:, :5], masks.float()):
        with pytest.raises(ValueError, match="expected masks of bool or uint8"):
            draw_detections(image, boxes, masks=invalid)


DRAW = """
import os, sys
import numpy as np
from faults.process import disable_malloc_cache, limit_memory
from detops.data.shapes import draw_scene

def draw(slack):
    disable_malloc_cache()
    limit_memory(os.getpid(), slack)
    try:
        draw_scene(np.random.default_rng(3), "train", (96, 96), 4)
    except MemoryError:
        return 1
    return 0

draw_scene(np.random.default_rng(3), "train", (96, 96), 4)
for slack in range(0, 6 << 20, 3 << 14):
    if not (child := os.fork()):
        os._exit(draw(slack))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
def test_drawing_without_memory_raises_memory_error():
    command = [sys.executable, "-c", DRAW]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert {*result.stdout.split()} == {"0", "1"}, result.stdout + result.stderr


def test_drawing_leaves_the_numpy_buffer_size_unchanged():
    before = np.getbufsize()
    draw_scene(np.random.default_rng(0), "train", (48, 48), 1)
    assert np.getbufsize() == before
