# SPDX-License-Identifier: MIT
"""Detection on images of any size, and drawings of detections."""

import copy
import math

import pytest
import torch
from PIL import Image
from small_detectors import small_detector
from torch import nn

from detops.device import choose_device
from detops.engine import Detector
from detops.visualize import PALETTE, TRUTH_COLOUR, draw_detections, with_legend

SIZES = ((64, 80), (70, 61), (64, 80), (64, 80))


class BrightRectangleDetector(nn.Module):
    """Finds the one bright rectangle of each image."""

    def forward(self, images):
        found = []
        for image in images:
            rows, columns = (image[0] > 0.9).nonzero().unbind(1)
            box = [] if len(rows) == 0 else [[columns.min(), rows.min(), columns.max() + 1.0]]
            box = [[*b, rows.max() + 1.0] for b in box]
            boxes = torch.tensor(box).reshape(-1, 4)
            count = len(boxes)
            found.append(
                {
                    "boxes": boxes,
                    "labels": torch.ones(count, dtype=torch.int64),
                    "scores": torch.full((count,), 0.8),
                }
            )
        return found


@pytest.mark.parametrize("size", [(40, 50), (64, 64), (200, 150), (150, 301)])
@pytest.mark.parametrize("tile_size", [0, 64])
def test_detector_finds_objects_with_and_without_tiles(size, tile_size):
    image = torch.zeros(3, *size)
    image[:, 21:33, 17:36] = 1
    detector = Detector(BrightRectangleDetector(), ["tree"], tile_size, 0.5, device="cpu")
    found = detector.detect(image)
    assert found["boxes"].tolist() == [[17, 21, 36, 33]]
    assert found["names"] == ["tree"] and found["labels"].tolist() == [1]
    assert len(detector.detect(image, 0.9)["scores"]) == 0
    assert detector.detect(torch.zeros(3, *size))["boxes"].shape == (0, 4)


@pytest.mark.parametrize("label", [0, -1, 3])
def test_label_without_a_name_is_rejected(label):
    """Labels that start at 0 would get the wrong names."""

    class Labelled(BrightRectangleDetector):
        def forward(self, images):
            return [
                found | {"labels": found["labels"] * label} for found in super().forward(images)
            ]

    message = rf"^Detector: expected labels in 1\.\.2, one per name, got {label}$"
    with pytest.raises(ValueError, match=message):
        Detector(Labelled(), ["cat", "dog"], device="cpu").detect(torch.ones(3, 8, 8))


def test_detect_batch_equals_detecting_each_image():
    name = "mask_rcnn_R_50_FPN_1x"
    detector = Detector(small_detector(name), [str(i) for i in range(80)])
    images = [torch.randint(0, 256, (3, *size), dtype=torch.uint8) for size in SIZES]
    for found, image in zip(detector.detect_batch(images), images, strict=True):
        single = detector.detect(image)
        assert found["names"] == single["names"] and len(found["scores"]) > 0
        for key, value in found.items():
            assert key == "names" or torch.equal(value, single[key])
    assert detector.detect_batch([]) == []
    assert all((each["scores"] >= 0.9).all() for each in detector.detect_batch(images, 0.9))


def test_detector_uses_weights_that_change_in_place():
    name = "mask_rcnn_R_50_FPN_1x"
    model = copy.deepcopy(small_detector(name))
    detector = Detector(model, [str(i) for i in range(80)])
    image = torch.randint(0, 256, (3, 64, 80), dtype=torch.uint8)
    before, computes = detector.detect(image), detector._inference_model
    assert detector._inference_model is computes
    with torch.no_grad():
        for parameter in model.roi_heads.box.predictor.parameters():
            parameter.mul_(1.5)
    after = detector.detect(image)
    assert detector._inference_model is not computes and not torch.equal(
        before["scores"], after["scores"]
    )
    expected = Detector(model, detector.names).detect(image)
    assert torch.equal(after["boxes"], expected["boxes"])


def test_draw_detections_enlarges_and_marks_boxes():
    image = torch.full((3, 60, 80), 90, dtype=torch.uint8)
    boxes = torch.tensor([[10.0, 10.0, 40.0, 50.0], [70.0, 0.0, 90.0, 20.0], [30.0, 30, 20, 20]])
    drawing = draw_detections(
        image, boxes, torch.rand(3), torch.tensor([1, 2, 99]), ["a", "b", "c"], boxes[:1] + 4
    )
    assert drawing.size == (160, 120) and drawing.mode == "RGB"
    assert drawing.getpixel((20, 60)) != (90, 90, 90)
    assert drawing.getpixel((60, 80)) == (90, 90, 90)
    assert draw_detections(image, boxes[:0]).getpixel((5, 5)) == (90, 90, 90)


def test_draw_detections_rejects_invalid_arguments():
    image, boxes = torch.zeros(3, 9, 9), torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"\[2, 5\]"):
        draw_detections(image, torch.zeros(2, 5))
    with pytest.raises(ValueError, match="expected 2 scores"):
        draw_detections(image, boxes, torch.zeros(3))
    with pytest.raises(ValueError, match=r"expected 2 scores, one per box, got \[2, 1\]"):
        draw_detections(image, boxes, torch.zeros(2, 1))
    with pytest.raises(ValueError, match="finite"):
        draw_detections(image, boxes * math.nan)
    for end in (3, -1):
        with pytest.raises(ValueError, match="expected a skeleton of keypoints below 3, got"):
            draw_detections(image, boxes, keypoints=torch.ones(2, 3, 3), skeleton=[(0, end)])


@pytest.mark.parametrize("distance", [1e6, 1e9, 1e30, 3e38, 1e300])
def test_draw_detections_clips_boxes_and_points_far_outside(distance):
    image = torch.zeros(3, 40, 60)
    outside = torch.tensor([[-distance, -distance, distance, distance]], dtype=torch.float64)
    unmarked = draw_detections(image, torch.zeros(0, 4))
    points = torch.tensor([[[distance, 5, 1], [5, -distance, 1]]], dtype=torch.float64)
    drawn = draw_detections(image, outside, ground_truth=outside, keypoints=points)
    assert drawn.tobytes() == unmarked.tobytes()
    partly_inside = torch.tensor([[5, -distance, 30, distance]], dtype=torch.float64)
    assert draw_detections(image, partly_inside).getpixel((10, 20)) != (0, 0, 0)


def test_device_names_are_validated():
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == torch.device("cpu")
    assert choose_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "", "cuda:", "cuda:x", "mps", "meta", "0"):
        with pytest.raises(ValueError, match=rf"expected cpu, cuda or cuda:<number>, got '{name}'"):
            Detector(BrightRectangleDetector(), ["tree"], device=name)
    with pytest.raises(ValueError, match="CUDA devices, got cuda:99"):
        choose_device("cuda:99")


@pytest.mark.parametrize("width", [60, 400, 4000])
def test_legend_is_drawn_above_the_image(width):
    image = Image.new("RGB", (width, 50), (9, 9, 9))
    entries = {"found": PALETTE[0], "marked by people": TRUTH_COLOUR, "neither": (1, 2, 3)}
    shown = with_legend(image, entries)
    assert shown.width == width
    assert shown.crop((0, shown.height - 50, *shown.size)).tobytes() == image.tobytes()
    strip = shown.crop((0, 0, width, shown.height - 50))
    colours = {colour for _, colour in strip.getcolors(maxcolors=1 << 20)}
    assert {*entries.values(), (255, 255, 255)} <= colours
    lower = with_legend(Image.new("RGB", (width, 50)), {"found": PALETTE[0]}).height
    assert (shown.height > lower) == (width < 400)
