"""Bounding boxes of masks."""

from torch import Tensor

from ..registration import constant

_masks_to_boxes = constant("masks_to_boxes")


def masks_to_boxes(masks: Tensor) -> Tensor:
    """Returns the bounding box of the nonzero pixels of each mask.

    The corners are pixels of the mask, so a single pixel gives a box without area. An all-zero mask
    gives ``(0, 0, 0, 0)``. NaN counts as nonzero.

    Args:
        masks: ``[N, H, W]`` of bool, any integer or any floating dtype.

    Returns:
        float32 ``[N, 4]`` as (x1, y1, x2, y2) in pixels, even if H or W is 0; torchvision then
        drops the rows.

    Raises:
        RuntimeError: wrong shape or dtype.

    Example:
        >>> masks = torch.zeros(1, 20, 30, dtype=torch.bool)
        >>> masks[0, 3:7, 10:16] = True
        >>> masks_to_boxes(masks)
        tensor([[10.,  3., 15.,  6.]])
    """
    return _masks_to_boxes(masks)
