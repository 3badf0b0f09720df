"""Masks as run lengths."""

from typing import Any

import torch
from torch import Tensor


def masks_to_rle(masks: Tensor) -> list[dict[str, Any]]:
    """Encodes masks in COCO's compressed run lengths, ready for ``json.dump``.

    Args:
        masks: bool ``[N, H, W]``, on any device: one mask at a time is copied.

    Returns:
        One dict per mask: ``size`` as [H, W] and ``counts`` as a str.

    Raises:
        ValueError: wrong shape or dtype.
        ImportError: pycocotools is not installed.
    """
    if masks.dim() != 3 or masks.dtype != torch.bool:
        raise ValueError(
            f"detops.masks_to_rle: masks must be bool [N, H, W], got {masks.dtype} "
            f"{list(masks.shape)}"
        )
    try:
        from pycocotools import mask as coco
    except ImportError as error:
        raise ImportError(
            "detops.masks_to_rle needs pycocotools: pip install pycocotools"
        ) from error
    # COCO counts down the columns: what it reads is a transposed copy, in memory used again.
    columns = torch.empty(masks.size(2), masks.size(1), dtype=torch.uint8)
    encoded = []
    for mask in masks.view(torch.uint8):
        rle = coco.encode(columns.copy_(mask.t()).numpy().T)
        encoded.append({"size": list(rle["size"]), "counts": rle["counts"].decode("ascii")})
    return encoded
