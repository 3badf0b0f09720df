"""Images of different sizes as one batch."""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..distributed import maximum, world_size
from .symbolic import larger


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
    height, width = (
        (reduce(larger, [image.shape[side] for image in images]) + step - 1) // step * step
        for side in (-2, -1)
    )
    if across_processes and world_size() > 1:
        size = torch.tensor([height, width], device=images[0].device)
        height, width = maximum(size).tolist()
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    if torch.compiler.is_compiling():
        # A slice of the batch would ask whether it is the whole.
        padded = [
            F.pad(x, (0, width - w, 0, height - h)) for x, (h, w) in zip(images, sizes, strict=True)
        ]
        return ImageList(torch.stack(padded).contiguous(memory_format=torch.channels_last), sizes)
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    batch = batch.contiguous(memory_format=torch.channels_last)
    for slot, image, (h, w) in zip(batch, images, sizes, strict=True):
        slot[:, :h, :w].copy_(image)
    return ImageList(batch, sizes)
