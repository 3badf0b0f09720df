"""Masks of detections, at the size of the image."""

import torch
from torch import Tensor

from ..registration import constant
from ._shared import two_of

_paste_masks_in_image = constant("paste_masks_in_image")


def paste_masks_in_image(
    masks: Tensor, boxes: Tensor, image_shape: tuple[int, int], threshold: float = 0.5
) -> Tensor:
    """Stretches each mask over its box and puts it into an image of zeros.

    The centre of pixel x is at ``(x + 0.5 - x1) / (x2 - x1) * w - 0.5`` among the centres of the
    mask's w cells, and likewise for y. In between, values are bilinear; beyond the outermost
    centres they fall to zero within a cell, so that a mask reaches half a cell out of its box, and
    a threshold of 0 sets all it reaches. ``torch.nn.functional.grid_sample`` samples alike, with
    ``align_corners=False`` and zeros for padding.

    torchvision's function of this name first pads the mask by one cell and then moves the corners
    of the box to whole pixels; this one does neither, and it thresholds. The result is the same on
    every device, instruction set and number of threads. Not differentiable.

    Args:
        masks: ``[N, 1, h, w]`` or ``[N, h, w]``, usually probabilities; or bool, or uint8, as the
            numbers that they are.
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels. A box that is empty, inverted, NaN or
            infinite gives zeros.
        image_shape: ``(H, W)``.
        threshold: least value that sets a pixel; below zero, values are not compared but stored
            as 0 to 255, rounded down.

    Returns:
        ``[N, H, W]``: bool, or uint8 if ``threshold`` is negative.

    Raises:
        RuntimeError: wrong shape or dtype, devices that differ, or a NaN threshold.

    Example:
        >>> boxes = torch.tensor([[2.0, 1, 6, 3]])
        >>> paste_masks_in_image(torch.ones(1, 1, 28, 28), boxes, (4, 8)).int()
        tensor([[[0, 0, 0, 0, 0, 0, 0, 0],
                 [0, 0, 1, 1, 1, 1, 0, 0],
                 [0, 0, 1, 1, 1, 1, 0, 0],
                 [0, 0, 0, 0, 0, 0, 0, 0]]], dtype=torch.int32)
    """
    size = image_shape
    if not isinstance(size, tuple) or len(size) != 2:
        if not torch.jit.is_scripting():
            size = two_of("paste_masks_in_image", "image_shape", "(height, width)", size)
    height, width = size
    if isinstance(masks, Tensor) and masks.dtype in (torch.bool, torch.uint8):
        masks = masks.float()
    return _paste_masks_in_image(masks, boxes, height, width, threshold)
