"""What the RoI ops share."""

from typing import Any

import torch
from torch import Tensor


def as_rois(boxes: Tensor | list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Turns a list of ``[L, 4]``, one per image, into ``[K, 5]``; leaves a tensor alone."""
    if isinstance(boxes, Tensor):
        return boxes
    if not boxes:
        raise ValueError("detops: a list of boxes must hold one tensor per image, got an empty list")
    for i, b in enumerate(boxes):
        if b.dim() != 2 or b.size(1) != 4:
            raise ValueError(f"detops: boxes[{i}] must be [L, 4], got {list(b.shape)}")
    # A batch index above 256 has no exact half: never below float32.
    wide = torch.promote_types(boxes[0].dtype, torch.float32)
    return torch.cat(
        [
            torch.cat([b.new_full((b.size(0), 1), i, dtype=wide), b.to(wide)], dim=1)
            for i, b in enumerate(boxes)
        ]
    )


def as_pair(output_size: int | tuple[int, int]) -> tuple[int, int]:
    """An ``(height, width)`` from one number or two."""
    if isinstance(output_size, (tuple, list, torch.Size)):
        height, width = output_size
        return height, width
    return output_size, output_size


def memory_format(input: Tensor) -> Any:
    """The layout that ``input`` is in, as far as the RoI ops tell layouts apart."""
    if input.is_contiguous(memory_format=torch.channels_last) and not input.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format
