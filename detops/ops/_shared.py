"""What several ops share."""

from typing import Any

import torch
from torch import Tensor, nn


class PoolingModule(nn.Module):
    """A pooling whose attributes are its arguments."""

    def extra_repr(self) -> str:
        """The arguments."""
        arguments = (a for a in vars(self).items() if a[0] != "training" and a[0][0] != "_")
        return ", ".join(f"{name}={value}" for name, value in arguments)


def as_rois(boxes: Tensor | list[Tensor] | tuple[Tensor, ...], columns: int = 4) -> Tensor:
    """Turns a list of ``[L, columns]``, one per image, into ``[K, 1 + columns]``.

    Leaves a tensor alone.
    """
    if isinstance(boxes, Tensor):
        return boxes
    if not boxes:
        raise ValueError(
            "detops: a list of boxes must hold one tensor per image, got an empty list"
        )
    for i, b in enumerate(boxes):
        if b.dim() != 2 or b.size(1) != columns:
            raise ValueError(f"detops: boxes[{i}] must be [L, {columns}], got {list(b.shape)}")
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


# vmap folds its dimension into the images of a batch, so that one call of the kernel does it all.


def fold(x: Tensor, dim: int | None, batch: int) -> Tensor:
    """``[N, ...]`` with the dimension ``dim`` of size ``batch`` on top, to ``[batch * N, ...]``."""
    front = x.expand(batch, *x.shape) if dim is None else x.movedim(dim, 0)
    return front.flatten(0, 1)


def unfold(x: Tensor, batch: int) -> Tensor:
    """``[batch * N, ...]`` to ``[batch, N, ...]``."""
    return x.unflatten(0, (batch, -1)) if x.size(0) else x.new_empty(batch, 0, *x.shape[1:])


def fold_boxes(boxes: Tensor, dim: int | None, batch: int, images: int) -> Tensor:
    """Like :func:`fold`, with batch indices that point into the folded images.

    An index out of range stays one: it must not come to mean an image of the next batch entry.
    """
    front = boxes.expand(batch, *boxes.shape) if dim is None else boxes.movedim(dim, 0)
    front = front.to(torch.promote_types(front.dtype, torch.float32))
    index, box = front[..., :1], front[..., 1:]
    offset = images * torch.arange(batch, device=front.device).view(-1, 1, 1)
    index = torch.where((index >= 0) & (index < images), index + offset, -1)
    return torch.cat([index, box], dim=-1).flatten(0, 1)
