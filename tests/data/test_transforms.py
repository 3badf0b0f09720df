# SPDX-License-Identifier: MIT
"""Augmentation: boxes, masks and keypoints stay on their objects."""

from types import SimpleNamespace

import pytest
import torch

from detops.data.transforms import (
    RandomFlip,
    RandomRotate90,
    RandomSquareCrop,
    TrainTransform,
    crop_target,
    mirrored_keypoints,
)


def bright_region(image):
    rows, columns = (image.float().mean(0) > 0.5 * image.float().max()).nonzero().unbind(1)
    edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    return [int(edge) for edge in edges]


def image_with_box(box, height=50, width=70):
    x1, y1, x2, y2 = box
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    image[:, y1:y2, x1:x2] = 255
    target = {"boxes": torch.tensor([box], dtype=torch.float32), "labels": torch.tensor([1])}
    return image, target


def settings(**changes):
    values = {
        "CROP_MIN": 20,
        "CROP_MAX": 45,
        "ROTATE90": True,
        "HORIZONTAL_FLIP_PROB_TRAIN": 0.5,
        "VERTICAL_FLIP_PROB_TRAIN": 0.5,
        "BRIGHTNESS": 0.2,
        "CONTRAST": 0.0,
        "SATURATION": 0.2,
        "HUE": 0.05,
    }
    return SimpleNamespace(INPUT=SimpleNamespace(**(values | changes)))


@pytest.mark.parametrize("seed", range(30))
def test_augmentation_keeps_boxes_on_their_objects(seed):
    torch.manual_seed(seed)
    image, target = image_with_box([30, 18, 47, 29])
    image, target = TrainTransform(settings())(image, target)
    assert image.dtype == torch.float32 and 0 <= image.min() and image.max() <= 1
    assert type(target["boxes"]) is torch.Tensor and len(target["boxes"]) == len(target["labels"])
    if len(target["boxes"]):
        assert target["boxes"][0].tolist() == bright_region(image)


def test_augmentation_accepts_images_without_boxes():
    image = torch.zeros(3, 10, 12, dtype=torch.uint8)
    target = {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)}
    image, target = TrainTransform(settings())(image, target)
    assert target["boxes"].shape == (0, 4) and image.shape[0] == 3


def test_image_keeps_its_size_without_cropping():
    image, target = image_with_box([3, 4, 9, 8])
    out, _ = TrainTransform(settings(CROP_MAX=0, ROTATE90=False))(image, target)
    assert out.shape == image.shape


@pytest.mark.parametrize(("visible", "kept"), [(0.49, 1), (0.51, 0)])
def test_crop_drops_boxes_below_the_visible_fraction(visible, kept):
    _, target = image_with_box([10, 10, 20, 20])
    result = crop_target(target, (15, 0, 40, 40), visible)
    assert len(result["boxes"]) == len(result["labels"]) == kept
    if kept:
        assert result["boxes"].tolist() == [[0, 10, 5, 20]]


def test_crop_sides_are_within_the_limits():
    torch.manual_seed(0)
    image, target = image_with_box([10, 10, 20, 20])
    crop = RandomSquareCrop(12, 16)
    sides = {tuple(crop(image, target)[0].shape[1:]) for _ in range(100)}
    assert sides == {(s, s) for s in range(12, 17)}
    assert RandomSquareCrop(60, 60)(image, target)[0].shape == (3, 50, 60)
    with pytest.raises(ValueError, match="max_side 5"):
        RandomSquareCrop(6, 5)


def test_random_rotation_covers_all_quarter_turns():
    image, target = image_with_box([10, 12, 20, 30])
    positions = set()
    for seed in range(20):
        torch.manual_seed(seed)
        rotated, rotated_target = RandomRotate90()(image, target)
        assert rotated_target["boxes"][0].tolist() == bright_region(rotated)
        positions.add(tuple(rotated_target["boxes"][0].tolist()))
    assert len(positions) == 4


def image_with_object(height=50, width=70):
    """Returns an L-shaped object with mask and keypoints; the image shows its mask."""
    mask = torch.zeros(1, height, width, dtype=torch.uint8)
    mask[:, 18:40, 30:36] = 1
    mask[:, 34:40, 30:52] = 1
    points = torch.tensor([[[30.5, 18.5, 2], [51.5, 39.5, 1], [0, 0, 0]]])
    target = {
        "boxes": torch.tensor([[30.0, 18, 52, 40]]),
        "labels": torch.tensor([1]),
        "masks": mask,
        "keypoints": points,
        "image_id": 5,
    }
    return mask.expand(3, -1, -1) * 255, target


def check_consistent(image, target, box_of_mask=True):
    """Checks that the mask equals the image, and that box and keypoints fit the mask."""
    mask = target["masks"][0]
    assert torch.equal(mask > 0, image[0] > 0.5 * image.max())
    rows, columns = mask.nonzero().unbind(1)
    bounds = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert target["boxes"][0].tolist() == [float(side) for side in bounds]
    for x, y, visibility in target["keypoints"][0].tolist():
        assert (x, y) == (0, 0) if visibility == 0 else mask[int(y), int(x)] == 1


@pytest.mark.parametrize("seed", range(30))
def test_masks_boxes_and_keypoints_move_together(seed):
    torch.manual_seed(seed)
    transform = TrainTransform(settings(BRIGHTNESS=0.0, SATURATION=0.0, HUE=0.0))
    image, target = transform(*image_with_object())
    assert target["masks"].dtype == torch.uint8 and target["masks"].shape[1:] == image.shape[1:]
    assert len(target["masks"]) == len(target["keypoints"]) == len(target["labels"])
    assert target["image_id"] == 5
    if len(target["labels"]):
        check_consistent(image, target)


@pytest.mark.parametrize(
    "transform",
    [
        RandomFlip(1, 0),
        RandomFlip(0, 1),
        RandomFlip(1, 1),
        RandomRotate90(),
        RandomSquareCrop(45, 48, 0.01),
        RandomSquareCrop(70, 70),
    ],
)
def test_each_transform_keeps_targets_on_the_object(transform):
    image, target = image_with_object()
    before = {key: value.clone() for key, value in target.items() if key != "image_id"}
    for seed in range(8):
        torch.manual_seed(seed)
        new_image, new_target = transform(image, target)
        if len(new_target["labels"]):
            check_consistent(new_image, new_target)
    assert all(torch.equal(target[key], value) for key, value in before.items())  # unchanged


def test_transforms_accept_empty_masks_and_keypoints():
    image, target = image_with_object()
    target = {k: v[:0] if k != "image_id" else v for k, v in target.items()}
    for seed in range(8):
        torch.manual_seed(seed)
        new_image, new_target = TrainTransform(settings())(image, target)
        assert new_target["masks"].shape == (0, *new_image.shape[1:])
        assert new_target["keypoints"].shape == (0, 3, 3) and new_target["boxes"].shape == (0, 4)


def test_crop_visibility_counts_mask_pixels():
    # 40% of the L's box remain, but far fewer of its pixels: the upright is cut away.
    _, target = image_with_object()
    window = (36, 18, 60, 40)
    assert len(crop_target(target, window, 0.5)["labels"]) == 0
    kept = crop_target(target, window, 0.3)
    assert kept["boxes"].tolist() == [[0, 16, 16, 22]] and int(kept["masks"].sum()) == 16 * 6
    assert kept["keypoints"].tolist() == [[[0, 0, 0], [15.5, 21.5, 1], [0, 0, 0]]]
    # The window contains a part of the box, but no pixel of the object.
    assert len(crop_target(target, (40, 18, 60, 30), 0.0)["labels"]) == 0
    box_only = {key: target[key] for key in ("boxes", "labels")}
    assert len(crop_target(box_only, (40, 18, 60, 30), 0.0)["labels"]) == 1


def test_crop_keeps_fractional_box_edges():
    _, target = image_with_object()
    target["boxes"] = torch.tensor([[30.25, 18.5, 51.5, 39.75]])
    cropped = crop_target(target, (10, 10, 60, 50), 0.4)
    assert cropped["boxes"].tolist() == [[20.25, 8.5, 41.5, 29.75]]


def test_flips_swap_left_and_right_keypoints():
    names = ["nose", "left_eye", "right_eye", "left_only"]
    assert mirrored_keypoints(names) == [0, 2, 1, 3]
    points = torch.tensor([[[5.0, 1, 2], [7, 2, 2], [3, 2, 1], [0, 0, 0]]])
    image, target = image_with_box([1, 0, 9, 4], 20, 10)
    target["keypoints"] = points
    for flip, mirrored in (
        (RandomFlip(1, 0, [0, 2, 1, 3]), [[5, 1, 2], [7, 2, 1], [3, 2, 2], [0, 0, 0]]),
        (RandomFlip(0, 1, [0, 2, 1, 3]), [[5, 19, 2], [3, 18, 1], [7, 18, 2], [0, 0, 0]]),
    ):
        assert flip(image, target)[1]["keypoints"].tolist() == [mirrored]
    # A rotation does not mirror: left stays left.
    torch.manual_seed(1)
    assert RandomRotate90()(image, target)[1]["keypoints"][0, :, 2].tolist() == [2, 2, 1, 0]
