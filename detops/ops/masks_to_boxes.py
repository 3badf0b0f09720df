"""The boxes around masks."""

from torch import Tensor

from ..registration import constant

_masks_to_boxes = constant("masks_to_boxes")


def masks_to_boxes(masks: Tensor) -> Tensor:
    """The box around the pixels of each mask that are not zero.

    The corners are pixels of the mask: a single pixel gives a box without area. A mask that is zero
    all over gives ``(0, 0, 0, 0)``. A NaN is not zero.

    Args:
        masks: ``[N, H, W]`` of bool, any integer or any floating dtype.

    Returns:
        float32 ``[N, 4]`` as (x1, y1, x2, y2) in pixels: also where H or W is 0, for which
        torchvision drops the rows.

    Raises:
        RuntimeError: wrong shape or dtype.

    Example:
        >>> masks = torch.zeros(1, 20, 30, dtype=torch.bool)
        >>> masks[0, 3:7, 10:16] = True
        >>> masks_to_boxes(masks)
        tensor([[10.,  3., 15.,  6.]])
    """
    return _masks_to_boxes(masks)
