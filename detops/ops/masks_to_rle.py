"""Run-length encoding of masks."""

import ctypes
from typing import Any

from torch import Tensor

from ..registration import dispatcher_op, unscriptable

_masks_to_rle = dispatcher_op("masks_to_rle")


@unscriptable
def masks_to_rle(masks: Tensor) -> list[dict[str, Any]]:
    """Encodes masks as COCO's compressed run lengths, ready for ``json.dump``.

    The text equals that of ``encode`` in pycocotools. Runs go down the columns, and the first one
    counts zeros. A run ends where the value changes, so a uint8 mask must have at most two values.
    Masks whose rows, columns or pixels are contiguous in memory are read in place; others are
    copied first. The result consists of Python objects, so the call breaks the graph of
    ``torch.compile``.

    Args:
        masks: bool or uint8 ``[N, H, W]``, on any device: one mask at a time is copied to the host.

    Returns:
        One dict per mask: ``size`` as [H, W] and ``counts`` as a str.

    Raises:
        RuntimeError: wrong shape or dtype, or a mask of 2^32 pixels or more.

    Example:
        >>> masks_to_rle(torch.tensor([[[False, True], [False, True]]]))
        [{'size': [2, 2], 'counts': '22'}]
    """
    data, ends = _masks_to_rle(masks)
    # Unlike Tensor.numpy, this needs no NumPy.
    text = ctypes.string_at(data.data_ptr(), data.numel()).decode("ascii")
    _, height, width = masks.shape
    encoded, begin = [], 0
    for end in ends.tolist():
        encoded.append({"size": [height, width], "counts": text[begin:end]})
        begin = end
    return encoded
