"""Overlaps of masks, and non-maximum suppression by them."""

from torch import Tensor

from ..registration import plain

_mask_iou = plain("mask_iou")
_mask_nms = plain("mask_nms")


def mask_iou(masks1: Tensor, masks2: Tensor, mode: str = "iou") -> Tensor:
    """The overlap of every pair of two sets of masks.

    Masks are packed to a bit per pixel, and bits counted 64 at a time and more; the numbers of
    pixels are exact. The overlap with nothing, 0/0, is 0. Not differentiable.

    Args:
        masks1: ``[N, H, W]``, bool or uint8; what is not 0 belongs to the mask.
        masks2: ``[M, H, W]``, likewise.
        mode: ``"iou"``: shared pixels over those of the union; ``"iof"``: over those of the mask of
            ``masks1``, as pycocotools has it for objects of ``masks2`` that are crowds.

    Returns:
        float32 ``[N, M]``, the quotients rounded to nearest: the same on every device, instruction
        set and number of threads.

    Raises:
        RuntimeError: wrong shape, dtype or device, sizes that differ, or another mode.

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

    As :func:`nms`, with the overlaps of :func:`mask_iou`: masks are visited by descending score
    (NaN first, ties in input order), and one falls when its IoU with a kept mask, rounded to
    float32, is strictly greater than the threshold. An empty mask overlaps nothing. CUDA kernels
    hold the matrix of all overlaps, the CPU's do not.

    Args:
        masks: ``[N, H, W]``, bool or uint8; what is not 0 belongs to the mask.
        scores: ``[N]``.
        iou_threshold: overlap above which the lower-scoring mask falls.

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
