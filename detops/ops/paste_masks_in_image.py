"""Pasting of predicted masks into images."""

import torch
from torch import Tensor

from ..registration import constant
from ._shared import two_of

_paste_masks_in_image = constant("paste_masks_in_image")


def paste_masks_in_image(
    masks: Tensor, boxes: Tensor, image_shape: tuple[int, int], threshold: float = 0.5
) -> Tensor:
    """Resizes each mask to its box and pastes it into an image of zeros.

    The centre of pixel x is at ``(x + 0.5 - x1) / (x2 - x1) * w - 0.5`` in a mask of w cells, whose
    centres are at 0, 1, ..., w - 1. The same holds for y. Between centres, values are bilinear.
    Beyond the outermost centres, they fall to zero within one cell. A mask therefore extends half a
    cell beyond its box, and a threshold of 0 sets every pixel that it reaches.
    ``torch.nn.functional.grid_sample`` samples in the same way, with ``align_corners=False`` and
    zero padding.

    The torchvision function of this name first pads the mask by one cell and then moves the corners
    of the box to whole pixels. This one does neither, but applies a threshold. The result is the
    same on every device, instruction set and number of threads. Not differentiable.

    Args:
        masks: ``[N, 1, h, w]`` or ``[N, h, w]``, usually probabilities. Values of bool and uint8
            masks are converted to float without scaling.
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels. A box that is empty, inverted, NaN or
            infinite gives zeros.
        image_shape: ``(H, W)``.
        threshold: smallest value that sets a pixel. If it is negative, values are not compared but
            scaled to 0 to 255 and rounded down.

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
