# SPDX-License-Identifier: MIT
"""Training augmentation of images with boxes, masks and keypoints.

All randomness comes from torch's default generator. Scale jitter is not a separate step: the model
resizes every crop to the same side, so the random side of the crop acts as a random scale.

A target is a dict of `boxes` [n, 4] xyxy and `labels` [n] and, if present, `masks` uint8 or bool
[n, H, W] and `keypoints` [n, k, 3] (x, y, visibility), in pixels. Its other entries are passed
through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from ..ops import masks_to_boxes

Target = dict[str, Any]
Transform = Callable[[Tensor, Target], tuple[Tensor, Target]]


def crop_target(target: Target, window: tuple[int, int, int, int], min_visible: float) -> Target:
    """Crops a target to a window of its image.

    Args:
        target: target in pixels of the image.
        window: x1, y1, x2, y2 of the window in the same pixels.
        min_visible: objects that keep less than this fraction of their area are dropped: of the
            mask's area if there are masks, else of the box's.

    Returns:
        A target in pixels of the window. Boxes are clipped to it, and to the rest of the mask.
        Keypoints outside get x, y and visibility 0, as COCO stores unlabelled ones.
    """
    boxes = target["boxes"].float()
    x1, y1, x2, y2 = window
    low, high = boxes.new_tensor([x1, y1, x1, y1]), boxes.new_tensor([x2, y2, x2, y2])
    areas = _area(boxes)
    boxes = torch.minimum(torch.maximum(boxes, low), high) - low
    cropped = {"labels": target["labels"]}
    if "masks" in target:
        full, masks = target["masks"], target["masks"][:, y1:y2, x1:x2]
        areas, visible = (m.sum(dim=(1, 2), dtype=torch.float32) for m in (full, masks))
        # Boxes may end within pixels, those around masks only between them, so use the tighter of
        # both.
        tight = _boxes_around(masks)
        boxes = torch.cat(
            [torch.maximum(boxes[:, :2], tight[:, :2]), torch.minimum(boxes[:, 2:], tight[:, 2:])],
            dim=1,
        )
        cropped["masks"] = masks
    else:
        visible = _area(boxes)
    if "keypoints" in target:
        cropped["keypoints"] = _cropped_keypoints(target["keypoints"], window)
    keep = (visible >= min_visible * areas) & (visible > 0)
    keep &= (boxes[:, 2:] - boxes[:, :2]).amin(dim=1) > 0
    return target | {"boxes": boxes[keep]} | {key: value[keep] for key, value in cropped.items()}


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def _boxes_around(masks: Tensor) -> Tensor:
    """Returns boxes to the far edges of the masks' outermost pixels; empty masks have no area."""
    filled = masks.flatten(1).any(dim=1)
    far = torch.tensor([0.0, 0.0, 1.0, 1.0])
    return masks_to_boxes(masks) + far * filled[:, None]


def _cropped_keypoints(points: Tensor, window: tuple[int, int, int, int]) -> Tensor:
    x1, y1, x2, y2 = window
    x, y, visibility = points.unbind(dim=2)
    inside = (x >= x1) & (x <= x2) & (y >= y1) & (y <= y2) & (visibility > 0)
    shifted = torch.stack([x - x1, y - y1, visibility], dim=2)
    return shifted * inside[:, :, None]


class RandomSquareCrop:
    """Crops a square with a random side in [min_side, max_side] at a random position.

    Each side is limited to that of the image. See `crop_target` for `min_visible`.
    """

    def __init__(self, min_side: int, max_side: int, min_visible: float = 0.4) -> None:
        if not 0 < min_side <= max_side:
            raise ValueError(
                "RandomSquareCrop: expected 0 < min_side <= max_side, got "
                f"min_side {min_side}, max_side {max_side}"
            )
        self.min_side, self.max_side, self.min_visible = min_side, max_side, min_visible

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Crops image [C, H, W] and its target."""
        side = _randint(self.min_side, self.max_side)
        height, width = min(side, image.shape[-2]), min(side, image.shape[-1])
        top, left = _randint(0, image.shape[-2] - height), _randint(0, image.shape[-1] - width)
        window = (left, top, left + width, top + height)
        cropped = image[..., top : top + height, left : left + width].contiguous()
        return cropped, crop_target(target, window, self.min_visible)


class RandomRotate90:
    """Rotates by 0, 90, 180 or 270 degrees. Pixels stay whole, so boxes stay exact."""

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Rotates image [C, H, W] and its target."""
        target = dict(target)
        for _ in range(_randint(0, 3)):
            width = image.shape[-1]
            image = torch.rot90(image, 1, (-2, -1))
            x1, y1, x2, y2 = target["boxes"].unbind(dim=1)
            target["boxes"] = torch.stack([y1, width - x2, y2, width - x1], dim=1)
            if "masks" in target:
                target["masks"] = torch.rot90(target["masks"], 1, (-2, -1))
            if "keypoints" in target:
                x, y, visibility = target["keypoints"].unbind(dim=2)
                rotated = torch.stack([y, width - x, visibility], dim=2)
                target["keypoints"] = rotated * (visibility > 0)[:, :, None]
        return image.contiguous(), target


class RandomFlip:
    """Flips left to right, then top to bottom, each with its own probability.

    Args:
        horizontal: probability of the horizontal flip.
        vertical: probability of the vertical flip.
        keypoint_flip: for each keypoint, the index of its mirror image, such as the right eye's for
            the left eye; by default keypoints keep their indices.
    """

    def __init__(
        self, horizontal: float, vertical: float, keypoint_flip: Sequence[int] | None = None
    ) -> None:
        self.flips = ((horizontal, -1), (vertical, -2))
        self.keypoint_flip = None if keypoint_flip is None else list(keypoint_flip)

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Flips image [C, H, W] and its target."""
        for probability, dim in self.flips:
            if float(torch.rand(())) < probability:
                image, target = image.flip(dim), self._flipped(target, image.shape[dim], dim)
        return image, target

    def _flipped(self, target: Target, side: int, dim: int) -> Target:
        axis = -dim - 1  # 0 for x or 1 for y, in boxes and points
        boxes = target["boxes"].clone()
        boxes[:, axis] = side - target["boxes"][:, axis + 2]
        boxes[:, axis + 2] = side - target["boxes"][:, axis]
        flipped = target | {"boxes": boxes}
        if "masks" in target:
            flipped["masks"] = target["masks"].flip(dim)
        if "keypoints" in target:
            points = target["keypoints"]
            points = points.clone() if self.keypoint_flip is None else points[:, self.keypoint_flip]
            points[:, :, axis] = (side - points[:, :, axis]) * (points[:, :, 2] > 0)
            flipped["keypoints"] = points
        return flipped


def mirrored_keypoints(names: Sequence[str]) -> list[int]:
    """Returns the index of each name with "left" and "right" exchanged, or its own index."""
    mirrored = []
    for index, name in enumerate(names):
        other = name.replace("left", "\0").replace("right", "left").replace("\0", "right")
        mirrored.append(names.index(other) if other in names else index)
    return mirrored


class TrainTransform:
    """Applies the augmentation of a config, from uint8 [3, H, W] to float32 in 0..1.

    Reads INPUT.CROP_MIN, CROP_MAX, ROTATE90, HORIZONTAL_FLIP_PROB_TRAIN, VERTICAL_FLIP_PROB_TRAIN,
    BRIGHTNESS, CONTRAST, SATURATION and HUE. A CROP_MAX of 0 disables cropping.

    Args:
        cfg: the config.
        keypoint_names: names of the targets' keypoints, if they have any.
    """

    def __init__(self, cfg: Any, keypoint_names: Sequence[str] = ()) -> None:
        settings = cfg.INPUT
        self.geometry: list[Transform] = []
        if settings.CROP_MAX > 0:
            self.geometry.append(RandomSquareCrop(settings.CROP_MIN, settings.CROP_MAX))
        if settings.ROTATE90:
            self.geometry.append(RandomRotate90())
        self.geometry.append(
            RandomFlip(
                settings.HORIZONTAL_FLIP_PROB_TRAIN,
                settings.VERTICAL_FLIP_PROB_TRAIN,
                mirrored_keypoints(keypoint_names) if keypoint_names else None,
            )
        )
        self.colour = v2.Compose(
            [
                v2.ColorJitter(
                    settings.BRIGHTNESS, settings.CONTRAST, settings.SATURATION, settings.HUE
                ),
                v2.ToDtype(torch.float32, scale=True),
                v2.ToPureTensor(),
            ]
        )

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Transforms image uint8 [3, H, W] and its target."""
        for transform in self.geometry:
            image, target = transform(image, target)
        return self.colour(tv_tensors.Image(image)), target


def _randint(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, ()))
