"""Images of different sizes as one batch."""

from typing import NamedTuple

import torch
from torch import Tensor


class ImageList(NamedTuple):
    """``tensors`` ``[N, 3, H, W]``, channels_last; ``sizes`` the (height, width) of each inside."""

    tensors: Tensor
    sizes: list[tuple[int, int]]


def to_image_list(images: list[Tensor], size_divisibility: int = 0) -> ImageList:
    """Pads ``[3, h, w]`` images with zeros, right and below, to one common size.

    Args:
        images: at least one.
        size_divisibility: H and W become multiples of it; 0 asks for nothing.
    """
    step = max(1, size_divisibility)
    height = -(-max(image.shape[-2] for image in images) // step) * step
    width = -(-max(image.shape[-1] for image in images) // step) * step
    batch = images[0].new_zeros(len(images), images[0].shape[0], height, width)
    batch = batch.contiguous(memory_format=torch.channels_last)
    for slot, image in zip(batch, images, strict=True):
        slot[:, : image.shape[-2], : image.shape[-1]].copy_(image)
    return ImageList(batch, [(image.shape[-2], image.shape[-1]) for image in images])
