"""Pasting of box masks into the image."""

import torch
from torch import Tensor

from ..ops.paste_masks_in_image import paste_masks_in_image


def paste_masks(
    masks: Tensor, boxes: Tensor, image_size: tuple[int, int], threshold: float
) -> Tensor:
    """Pastes each mask into its box, with the convention of maskrcnn-benchmark and torchvision.

    Args:
        masks: probabilities ``[K, 1, M, M]``.
        boxes: ``[K, 4]`` in pixels of the image.
        image_size: (height, width).
        threshold: see :func:`detops.paste_masks_in_image`.

    Returns:
        ``[K, 1, height, width]``: bool, or uint8 if ``threshold`` is negative.
    """
    snapped = snap_to_pixels(boxes, masks.size(-1))
    return paste_masks_in_image(masks, snapped, image_size, threshold).unsqueeze(1)


def snap_to_pixels(boxes: Tensor, cells: int) -> Tensor:
    """Moves boxes ``[K, 4]`` so that, with a margin of one cell, they cover whole pixels.

    maskrcnn-benchmark and torchvision pad a mask of ``cells`` per side with one cell of zeros,
    enlarge its box by as much, truncate the corners to integers and treat both as inclusive. That
    fixes the size a mask is resized to; here it only moves the box.
    """
    # In their order of arithmetic, so that corners are truncated at the same positions.
    half = (boxes[:, 2:] - boxes[:, :2]) * 0.5
    centre = (boxes[:, 2:] + boxes[:, :2]) * 0.5
    half = half * ((cells + 2) / cells)
    first = (centre - half).trunc()
    last = (centre + half).trunc() + 1
    cell = (last - first) / (cells + 2)
    return torch.cat([first + cell, last - cell], dim=1)
