"""Loss of the keypoint head: "Mask R-CNN" (He et al., 2017), section 5."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ....distributed import mean_count

IGNORED_CELL = -1


@torch.no_grad()
def keypoint_cells(keypoints: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Finds the cell of the box's heat map that contains each keypoint.

    Args:
        keypoints: ``[p, n, 3]`` as (x, y, visibility); a visibility <= 0 means unlabelled.
        boxes: ``[p, 4]``.
        size: cells per side.

    Returns:
        int64 ``[p, n]``, row-major indices; -1 for a keypoint outside the box or unlabelled.
    """
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    point, visible = keypoints[..., :2], keypoints[..., 2] > 0
    inside = ((point >= low) & (point <= high)).all(dim=-1)
    # The far border belongs to the last cell.
    x, y = ((point - low) * (size / (high - low))).clamp(0, size - 1).long().unbind(dim=-1)
    return torch.where(visible & inside, y * size + x, IGNORED_CELL)


def keypoint_loss(logits: Tensor, cells: Tensor) -> Tensor:
    """Returns the cross entropy over heat map cells, averaged over keypoints; 0 without any.

    Args:
        logits: ``[p, n, M, M]``.
        cells: int64 ``[p, n]``, see :func:`keypoint_cells`.
    """
    count = mean_count(int((cells != IGNORED_CELL).sum()), logits)
    total = F.cross_entropy(
        logits.flatten(0, 1).flatten(1), cells.flatten(), ignore_index=IGNORED_CELL, reduction="sum"
    )
    return total / count
