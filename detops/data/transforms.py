# SPDX-License-Identifier: MIT
"""Training augmentation of images with boxes.

All randomness comes from torch's default generator. Scale jitter needs no step of its own: the
model resizes every crop to the same side, so the random side of the crop is the random scale.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

Target = dict[str, Any]


def crop_boxes(target: Target, window: tuple[int, int, int, int], min_visible: float) -> Target:
    """Moves a target into a window of its image.

    Args:
        target: boxes [n, 4] xyxy and labels [n], in the image's pixels.
        window: x1, y1, x2, y2 of the window in the same pixels.
        min_visible: boxes that keep less than this share of their area are dropped.

    Returns:
        A target in the window's pixels, boxes clipped to it.
    """
    boxes = target["boxes"].float()
    x1, y1, x2, y2 = window
    low = boxes.new_tensor([x1, y1, x1, y1])
    high = boxes.new_tensor([x2, y2, x2, y2])
    clipped = torch.minimum(torch.maximum(boxes, low), high)
    keep = _area(clipped) >= min_visible * _area(boxes)
    keep &= (clipped[:, 2:] - clipped[:, :2]).amin(dim=1) > 0
    return target | {"boxes": (clipped - low)[keep], "labels": target["labels"][keep]}


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


class RandomSquareCrop:
    """Cuts a square with a random side in [min_side, max_side] at a random place.

    The side is cut down to what the image has. See `crop_boxes` for `min_visible`.
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
        cut = image[..., top : top + height, left : left + width].contiguous()
        return cut, crop_boxes(target, window, self.min_visible)


class RandomRotate90:
    """Turns by 0, 90, 180 or 270 degrees: whole pixels, so boxes stay exact."""

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Turns image [C, H, W] and its target."""
        boxes = target["boxes"]
        for _ in range(_randint(0, 3)):
            width = image.shape[-1]
            image = torch.rot90(image, 1, (-2, -1))
            x1, y1, x2, y2 = boxes.unbind(dim=1)
            boxes = torch.stack([y1, width - x2, y2, width - x1], dim=1)
        return image.contiguous(), target | {"boxes": boxes}


class TrainTransform:
    """The augmentation a config describes, from uint8 [3, H, W] to float32 in 0..1.

    Reads INPUT.CROP_MIN, CROP_MAX, ROTATE90, HORIZONTAL_FLIP_PROB_TRAIN, VERTICAL_FLIP_PROB_TRAIN,
    BRIGHTNESS, CONTRAST, SATURATION and HUE. Nothing is cropped when CROP_MAX is 0.
    """

    def __init__(self, cfg: Any) -> None:
        settings = cfg.INPUT
        self.crops: list[Callable[[Tensor, Target], tuple[Tensor, Target]]] = []
        if settings.CROP_MAX > 0:
            self.crops.append(RandomSquareCrop(settings.CROP_MIN, settings.CROP_MAX))
        if settings.ROTATE90:
            self.crops.append(RandomRotate90())
        self.rest = v2.Compose(
            [
                v2.RandomHorizontalFlip(settings.HORIZONTAL_FLIP_PROB_TRAIN),
                v2.RandomVerticalFlip(settings.VERTICAL_FLIP_PROB_TRAIN),
                v2.ColorJitter(
                    settings.BRIGHTNESS, settings.CONTRAST, settings.SATURATION, settings.HUE
                ),
                v2.ToDtype(torch.float32, scale=True),
                v2.ToPureTensor(),
            ]
        )

    def __call__(self, image: Tensor, target: Target) -> tuple[Tensor, Target]:
        """Transforms image uint8 [3, H, W] and its target (boxes [n, 4] xyxy, labels [n])."""
        for transform in self.crops:
            image, target = transform(image, target)
        boxes = tv_tensors.BoundingBoxes(
            target["boxes"], format="XYXY", canvas_size=tuple(image.shape[-2:])
        )
        image, boxes = self.rest(tv_tensors.Image(image), boxes)
        return image, target | {"boxes": boxes}


def _randint(low: int, high: int) -> int:
    return int(torch.randint(low, high + 1, ()))
