"""Matrix non-maximum suppression."""

from torch import Tensor

from ._shared import undifferentiable

_matrix_nms = undifferentiable("matrix_nms")


def matrix_nms(
    boxes: Tensor,
    scores: Tensor,
    idxs: Tensor | None = None,
    sigma: float = 2.0,
    min_score: float = 1e-3,
    method: str = "gaussian",
) -> tuple[Tensor, Tensor]:
    """Lowers the scores of boxes that overlap better ones, all at once.

    See "SOLOv2: Dynamic and Fast Instance Segmentation" (Wang et al., 2020); here, overlaps are
    those of boxes. Let f(IoU) be exp(-``sigma`` IoU^2) (``"gaussian"``) or 1 - IoU (``"linear"``),
    and let m_i be the largest IoU of box i with a box that scores higher. The score of a box j is
    multiplied by the minimum of f(IoU_ij) / f(m_i) over the boxes i of its label that score higher
    than j. Ties count in input order.

    The overlaps are never stored as a matrix: memory is O(N). A ratio of 0/0 counts as 1: such a
    box i equals a better one, which lowers the score itself. An undefined IoU (0/0, NaN or infinite
    boxes) counts as 0. Boxes with a NaN score do not lower other scores. The result is the same on
    every device, instruction set and number of threads.

    Args:
        boxes: ``[N, 4]`` as (x1, y1, x2, y2) in pixels.
        scores: ``[N]``.
        idxs: integer ``[N]``, the class of each box: any values. ``None`` for one class.
        sigma: strength of the Gaussian method; positive.
        min_score: boxes with a new score below this are dropped, and so are those with a new score
            of NaN or minus infinity.
        method: ``"gaussian"`` or ``"linear"``.

    Returns:
        The indices of the remaining boxes, int64 ``[K]``, and their new scores, ``[K]`` in the
        dtype of ``scores``, by descending new score, ties in input order. Computed in float32, or
        float64 if one of the inputs is float64. Not differentiable.

    Raises:
        RuntimeError: wrong shape or dtype, lengths or devices that differ, a NaN ``min_score``,
            ``sigma`` not positive and finite, or an unknown method.

    Example:
        >>> boxes = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 6], [20, 0, 29, 9]])
        >>> keep, scores = matrix_nms(boxes, torch.tensor([0.9, 0.8, 0.7]), method="linear")
        >>> keep
        tensor([0, 2, 1])
        >>> scores
        tensor([0.9000, 0.7000, 0.2667])
    """
    return _matrix_nms(boxes, scores, idxs, sigma, min_score, method)
