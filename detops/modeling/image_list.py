"""Batching of images of different sizes."""

from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ..distributed import maximum, world_size
from .symbolic import sym_max


class ImageList(NamedTuple):
    """A padded batch.

    ``tensors`` is ``[N, 3, H, W]`` in channels_last. ``sizes`` has the (height, width) of each
    image within it.
    """

    tensors: Tensor
    sizes: list[tuple[int, int]]


def to_image_list(
    images: list[Tensor], size_divisibility: int = 0, across_processes: bool = False
) -> ImageList:
    """Pads images ``[3, h, w]`` with zeros, at the right and the bottom, to a common size.

    Args:
        images: at least one.
        size_divisibility: H and W become multiples of it; 0 for no constraint.
        across_processes: use the same size in all processes. Padding affects the results of the
            network, and the processes synchronise with the slowest one anyway, which has the
            largest images.
    """
    multiple = max(1, size_divisibility)
    height, width = (
        (reduce(sym_max, [image.shape[side] for image in images]) + multiple - 1)
        // multiple
        * multiple
        for side in (-2, -1)
    )
    if across_processes and world_size() > 1:
        size = torch.tensor([height, width], device=images[0].device)
        height, width = maximum(size).tolist()
    sizes = [(image.shape[-2], image.shape[-1]) for image in images]
    if torch.compiler.is_compiling():
        # Slicing the batch would add a guard on whether the slice is the whole.
        padded = [
            F.pad(x, (0, width - w, 0, height - h)) for x, (h, w) in zip(images, sizes, strict=True)
        ]
        return ImageList(torch.stack(padded).contiguous(memory_format=torch.channels_last), sizes)
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    batch = batch.contiguous(memory_format=torch.channels_last)
    for slot, image, (h, w) in zip(batch, images, sizes, strict=True):
        slot[:, :h, :w].copy_(image)
    return ImageList(batch, sizes)
