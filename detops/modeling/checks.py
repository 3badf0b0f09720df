"""Validation of the inputs of a detector."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Target = dict[str, Any]


def check_images(images: Sequence[Tensor]) -> None:
    """Rejects images other than floating-point ``[3, h, w]``."""
    if not isinstance(images, list | tuple | Tensor):
        raise ValueError(f"images: expected a list of tensors, got {type(images).__name__}")
    if len(images) == 0:
        raise ValueError("images: expected at least one image, got none")
    for i, image in enumerate(images):
        if not isinstance(image, Tensor):
            raise ValueError(f"images[{i}]: expected a tensor, got {type(image).__name__}")
        if image.dim() != 3 or image.size(0) != 3 or not image.is_floating_point():
            raise ValueError(
                f"images[{i}]: expected floating point [3, h, w] in 0..1, got {image.dtype} "
                f"{list(image.shape)}"
            )
        if image.numel() == 0:
            raise ValueError(f"images[{i}]: expected at least one pixel, got {list(image.shape)}")


def check_targets(
    images: Sequence[Tensor],
    targets: Sequence[Target] | None,
    num_classes: int | None = None,
    with_masks: bool = False,
    num_keypoints: int = 0,
) -> None:
    """Rejects invalid targets; see :class:`~detops.modeling.GeneralizedRCNN`."""
    if targets is None or len(targets) != len(images):
        got = "None" if targets is None else str(len(targets))
        raise ValueError(f"targets: expected one per image ({len(images)}), got {got}")
    required = ["boxes", "labels", *["masks"] * with_masks, *["keypoints"] * (num_keypoints > 0)]
    for i, target in enumerate(targets):
        for key in required:
            if not isinstance(target.get(key), Tensor):
                raise ValueError(f"targets[{i}]: expected a tensor {key!r}, got {list(target)}")
        boxes, labels = target["boxes"], target["labels"]
        if boxes.dim() != 2 or boxes.size(1) != 4 or not boxes.is_floating_point():
            raise ValueError(
                f"targets[{i}]['boxes']: expected floating point [G, 4], got {boxes.dtype} "
                f"{list(boxes.shape)}"
            )
        if labels.shape != boxes.shape[:1] or labels.dtype != torch.int64:
            raise ValueError(
                f"targets[{i}]['labels']: expected int64 [{len(boxes)}], got {labels.dtype} "
                f"{list(labels.shape)}"
            )
        valid = (boxes[:, 2:] > boxes[:, :2]).all(dim=1) & boxes.isfinite().all(dim=1)
        if not bool(valid.all()):
            bad = int(torch.nonzero(~valid)[0])
            raise ValueError(
                f"targets[{i}]['boxes'][{bad}]: expected x1 < x2 and y1 < y2, "
                f"got {boxes[bad].tolist()}"
            )
        invalid = (labels < 1) | (labels >= (num_classes or 2**62))
        if bool(invalid.any()):
            bad = int(torch.nonzero(invalid)[0])
            bound = "" if num_classes is None else f" and below {num_classes}"
            raise ValueError(
                f"targets[{i}]['labels'][{bad}]: expected at least 1{bound}, got {int(labels[bad])}"
            )
        if with_masks:
            _check_masks(f"targets[{i}]['masks']", target["masks"], len(boxes), images[i])
        if num_keypoints:
            _check_keypoints(
                f"targets[{i}]['keypoints']", target["keypoints"], len(boxes), num_keypoints
            )


def _check_masks(name: str, masks: Tensor, count: int, image: Tensor) -> None:
    size = (count, *image.shape[1:])
    if masks.shape != size or masks.dtype not in (torch.bool, torch.uint8):
        raise ValueError(
            f"{name}: expected bool or uint8 {list(size)}, got {masks.dtype} {list(masks.shape)}"
        )


def _check_keypoints(name: str, keypoints: Tensor, count: int, num_keypoints: int) -> None:
    size = (count, num_keypoints, 3)
    if keypoints.shape != size or not keypoints.is_floating_point():
        raise ValueError(
            f"{name}: expected floating point {list(size)}, got {keypoints.dtype} "
            f"{list(keypoints.shape)}"
        )
