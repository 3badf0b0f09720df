"""Images of different sizes as one batch."""

from typing import NamedTuple

import torch
from torch import Tensor

from ..distributed import maximum, world_size


class ImageList(NamedTuple):
    """``tensors`` ``[N, 3, H, W]``, channels_last; ``sizes`` the (height, width) of each inside."""

    tensors: Tensor
    sizes: list[tuple[int, int]]


def to_image_list(
    images: list[Tensor], size_divisibility: int = 0, across_processes: bool = False
) -> ImageList:
    """Pads ``[3, h, w]`` images with zeros, right and below, to one common size.

    Args:
        images: at least one.
        size_divisibility: H and W become multiples of it; 0 asks for nothing.
        across_processes: the size is common to all processes. The padding shows in what the
            network makes of an image, and they wait for the one with the largest images anyway.
    """
    step = max(1, size_divisibility)
    height = -(-max(image.shape[-2] for image in images) // step) * step
    width = -(-max(image.shape[-1] for image in images) // step) * step
    if across_processes and world_size() > 1:
        size = torch.tensor([height, width], device=images[0].device)
        height, width = maximum(size).tolist()
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    batch = batch.contiguous(memory_format=torch.channels_last)
    for slot, image in zip(batch, images, strict=True):
        slot[:, : image.shape[-2], : image.shape[-1]].copy_(image)
    return ImageList(batch, [(image.shape[-2], image.shape[-1]) for image in images])
