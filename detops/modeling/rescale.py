"""Conversion of coordinates between an image and its resized copy in the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .convention import Convention


def to_batch(
    target: dict[str, Tensor], keys: Sequence[str], image: Tensor, resized: Tensor
) -> dict[str, Tensor]:
    """Scales the entries ``keys`` of a target from ``image`` ``[3, h, w]`` to ``resized``.

    Masks keep their size: the loss of the mask head scales the boxes to them.
    """
    sizes = image.shape[1:], resized.shape[1:]
    return target | {key: rescale(target[key], *sizes) for key in keys}


def to_image(
    detection: dict[str, Tensor],
    resized: Tensor,
    image: Tensor,
    mask_threshold: float,
    convention: Convention,
) -> dict[str, Tensor]:
    """Converts detections in ``resized`` to ``image`` ``[3, h, w]`` and pastes their masks."""
    size = (image.shape[1], image.shape[2])
    rescaled = rescale(convention.corners(detection["boxes"]), resized.shape[1:], size)
    detection = convention.select_visible(
        detection | {"boxes": convention.clip_to_image(rescaled, size)}
    )
    corners = detection["boxes"]
    detection = detection | {"boxes": convention.boxes(corners)}
    if "masks" in detection:
        detection["masks"] = convention.paste(detection["masks"], corners, size, mask_threshold)
    if "keypoints" in detection:
        detection["keypoints"] = rescale(detection["keypoints"], resized.shape[1:], size)
    return detection


def rescale(points: Tensor, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Scales points from an image of one size to another.

    Args:
        points: ``[..., 4]`` as (x1, y1, x2, y2), or ``[..., 3]`` as (x, y, visibility).
        source: (height, width) of the image that contains the points.
        target: (height, width) of the other image.
    """
    # new_full, since a tensor cannot be created from a list of symbolic sizes.
    y, x = (points.new_full((1,), target[i] / source[i]) for i in (0, 1))
    factors = [x, y, x, y] if points.size(-1) == 4 else [x, y, torch.ones_like(x)]
    return points * torch.cat(factors)
