"""Between the pixels of an image and those of its place in the batch."""

from collections.abc import Sequence

from torch import Tensor

from ..ops import clip_boxes_to_image
from .roi_heads.mask.inference import paste_masks


def to_batch(
    target: dict[str, Tensor], points: Sequence[str], image: Tensor, resized: Tensor
) -> dict[str, Tensor]:
    """A target of ``image`` ``[3, h, w]`` for ``resized``: the entries ``points`` are moved.

    Masks stay as they are: the mask head's loss finds its way among their pixels.
    """
    return target | {key: _rescale(target[key], image, resized) for key in points}


def to_image(
    detection: dict[str, Tensor], resized: Tensor, image: Tensor, mask_threshold: float
) -> dict[str, Tensor]:
    """Detections in ``resized`` as those in ``image`` ``[3, h, w]``, masks pasted."""
    size = (image.shape[1], image.shape[2])
    boxes = clip_boxes_to_image(_rescale(detection["boxes"], resized, image), size)
    detection = detection | {"boxes": boxes}
    if "masks" in detection:
        detection["masks"] = paste_masks(detection["masks"], boxes, size, mask_threshold)
    if "keypoints" in detection:
        detection["keypoints"] = _rescale(detection["keypoints"], resized, image)
    return detection


def _rescale(points: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """``[..., 4]`` as (x1, y1, x2, y2), or ``[..., 3]`` as (x, y, visibility)."""
    y, x = (target.shape[i] / source.shape[i] for i in (1, 2))
    factors = [x, y, x, y] if points.size(-1) == 4 else [x, y, 1]
    return points * points.new_tensor(factors)
