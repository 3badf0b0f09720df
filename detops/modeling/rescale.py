"""Between the pixels of an image and those of its place in the batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from .convention import Convention


def to_batch(
    target: dict[str, Tensor], points: Sequence[str], image: Tensor, resized: Tensor
) -> dict[str, Tensor]:
    """A target of ``image`` ``[3, h, w]`` for ``resized``: the entries ``points`` are moved.

    Masks stay as they are: the mask head's loss finds its way among their pixels.
    """
    sizes = image.shape[1:], resized.shape[1:]
    return target | {key: rescale(target[key], *sizes) for key in points}


def to_image(
    detection: dict[str, Tensor],
    resized: Tensor,
    image: Tensor,
    mask_threshold: float,
    convention: Convention,
) -> dict[str, Tensor]:
    """Detections in ``resized`` as those in ``image`` ``[3, h, w]``, masks pasted."""
    size = (image.shape[1], image.shape[2])
    moved = rescale(convention.corners(detection["boxes"]), resized.shape[1:], size)
    detection = convention.visible(detection | {"boxes": convention.in_image(moved, size)})
    corners = detection["boxes"]
    detection = detection | {"boxes": convention.boxes(corners)}
    if "masks" in detection:
        detection["masks"] = convention.paste(detection["masks"], corners, size, mask_threshold)
    if "keypoints" in detection:
        detection["keypoints"] = rescale(detection["keypoints"], resized.shape[1:], size)
    return detection


def rescale(points: Tensor, source: Sequence[int], target: Sequence[int]) -> Tensor:
    """Moves points of an image of one size into one of another, (height, width) both.

    Args:
        points: ``[..., 4]`` as (x1, y1, x2, y2), or ``[..., 3]`` as (x, y, visibility).
        source: their image's size.
        target: the other's.
    """
    # Filled, not made from a list: the sizes may be symbols of a graph.
    y, x = (points.new_full((1,), target[i] / source[i]) for i in (0, 1))
    factors = [x, y, x, y] if points.size(-1) == 4 else [x, y, torch.ones_like(x)]
    return points * torch.cat(factors)
