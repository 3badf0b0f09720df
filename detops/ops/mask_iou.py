"""Overlaps of masks, and non-maximum suppression by them."""

from torch import Tensor

from ..registration import dispatcher_op

_mask_iou = dispatcher_op("mask_iou")
_mask_nms = dispatcher_op("mask_nms")


def mask_iou(masks1: Tensor, masks2: Tensor, mode: str = "iou") -> Tensor:
    """Computes the overlap of every pair of masks from two sets.

    Masks are packed to one bit per pixel, and bits are counted 64 or more at a time. Pixel counts
    are exact. An overlap of 0/0 is 0. Not differentiable.

    Args:
        masks1: ``[N, H, W]``, bool or uint8; nonzero pixels belong to the mask.
        masks2: ``[M, H, W]``, likewise.
        mode: ``"iou"`` divides the shared pixels by those of the union, ``"iof"`` by those of the
            mask of ``masks1``, as pycocotools does if the objects of ``masks2`` are crowds.

    Returns:
        float32 ``[N, M]``, rounded to nearest; the same on every device, instruction set and number
        of threads.

    Raises:
        RuntimeError: wrong shape, dtype or device, sizes that differ, or an unknown mode.

    Example:
        >>> masks = torch.tensor([[[1, 1, 0, 0]], [[0, 1, 1, 1]]], dtype=torch.bool)
        >>> mask_iou(masks, masks)
        tensor([[1.0000, 0.2500],
                [0.2500, 1.0000]])
        >>> mask_iou(masks, masks, mode="iof")
        tensor([[1.0000, 0.5000],
                [0.3333, 1.0000]])
    """
    return _mask_iou(masks1, masks2, mode)


def mask_nms(masks: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Keeps the highest-scoring masks that do not overlap a better one too much.

    This is :func:`nms` with the overlaps of :func:`mask_iou`. Masks are visited by descending score
    (NaN first, ties in input order). A mask is suppressed if its IoU with a kept mask, rounded to
    float32, is strictly greater than the threshold. An empty mask overlaps nothing. The CUDA
    kernels store the matrix of all overlaps, the CPU kernels do not.

    Args:
        masks: ``[N, H, W]``, bool or uint8; nonzero pixels belong to the mask.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring mask is suppressed.

    Returns:
        int64 ``[K]``: indices of the kept masks, by descending score; the same on every device,
        instruction set and number of threads.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, or a NaN threshold.

    Example:
        >>> masks = torch.tensor([[[1, 1, 0]], [[1, 1, 1]], [[0, 0, 1]]], dtype=torch.bool)
        >>> mask_nms(masks, torch.tensor([0.9, 0.8, 0.7]), 0.5)
        tensor([0, 2])
    """
    return _mask_nms(masks, scores, iou_threshold)
