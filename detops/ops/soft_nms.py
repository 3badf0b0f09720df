"""Soft non-maximum suppression."""

from torch import Tensor

from ._shared import undifferentiable

_soft_nms = undifferentiable("soft_nms")


def soft_nms(
    boxes: Tensor,
    scores: Tensor,
    iou_threshold: float = 0.3,
    sigma: float = 0.5,
    min_score: float = 1e-3,
    method: str = "linear",
    max_output: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Lowers the scores of boxes that overlap a better one, instead of dropping them.

    See "Soft-NMS -- Improving Object Detection With One Line of Code" (Bodla et al., 2017). Each
    step selects the remaining box with the highest score (the first of equal ones) and multiplies
    the scores of the others by a function of their IoU with it:

    - ``"linear"``: 1 - IoU where IoU > ``iou_threshold``, else 1
    - ``"gaussian"``: exp(-IoU^2 / ``sigma``), for every IoU
    - ``"naive"``: 0 where IoU > ``iou_threshold``, else 1, which is ordinary suppression

    Boxes with a score below ``min_score``, NaN or minus infinity are dropped, also before the first
    selection. An undefined IoU (0/0, NaN or infinite boxes) counts as 0. The selection is the same
    on every device, instruction set and number of threads.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        scores: ``[N]``.
        iou_threshold: overlap above which the linear and the naive methods lower a score.
        sigma: width of the Gaussian method; positive.
        min_score: score below which a box is dropped.
        method: ``"linear"``, ``"gaussian"`` or ``"naive"``.
        max_output: maximum number of boxes to select; all by default.

    Returns:
        The indices of the selected boxes, int64 ``[K]``, and their scores when they were selected,
        ``[K]`` of the dtype of ``scores``, in the order of selection. Computed in float32, or
        float64 if one of the inputs is float64. Not differentiable.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN threshold or
            ``min_score``, ``sigma`` not positive and finite, an unknown method, or a negative
            number of boxes.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 6], [20, 0, 29, 9]])
        >>> keep, scores = soft_nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.3)
        >>> keep
        tensor([0, 2, 1])
        >>> scores
        tensor([0.9000, 0.7000, 0.2667])
    """
    return _soft_nms(boxes, scores, iou_threshold, sigma, min_score, method, max_output)
