"""Minimum-cost matching of queries and objects."""

from torch import Tensor

from ..registration import dispatcher_op

_linear_assignment = dispatcher_op("linear_assignment")


def linear_assignment(cost: Tensor, num_objects: Tensor | None = None) -> Tensor:
    """Matches queries with objects, one to one, at the least total cost.

    This is the matcher of DETR and related detectors, for a batch of images at once. Each query
    gets an object, or each object a query, whichever are fewer. The result is exact. It is computed
    with shortest augmenting paths (Jonker and Volgenant, "A Shortest Augmenting Path Algorithm for
    Dense and Sparse Linear Assignment Problems", 1987) in float64, whatever the dtype of the costs.
    The total cost is that of ``scipy.optimize.linear_sum_assignment``. If several matchings have
    the least total, it is unspecified which one is returned. It may differ from that of SciPy, but
    it is the same on every device, instruction set and number of threads.

    A pair whose cost is NaN or infinite (or beyond 1e200) is never matched, whereas SciPy raises
    errors. The result has as many pairs as the other costs allow, and is the cheapest of those
    matchings.

    Args:
        cost: ``[B, N, M]``, for N queries and M objects in each of B images. Either number may be
            larger.
        num_objects: integer ``[B]``, the number of objects of each image in a padded batch. The
            remaining columns are ignored. By default M for all images.

    Returns:
        int64 ``[B, N]``: the object of each query, or -1. Not differentiable.

    Raises:
        RuntimeError: wrong shape, dtype or device; B * N * M * min(N, M) above 2^40, which would
            take longer than minutes; on the CPU, a number of objects below 0 or above M (on CUDA it
            is clamped).

    Example:
        >>> cost = torch.tensor([[[4.0, 1], [2, 9], [3, 2]], [[4, 1], [2, 9], [3, 2]]])
        >>> linear_assignment(cost)
        tensor([[ 1,  0, -1],
                [ 1,  0, -1]])
        >>> linear_assignment(cost, torch.tensor([2, 1]))
        tensor([[ 1,  0, -1],
                [-1,  0, -1]])
        >>> queries = (linear_assignment(cost)[0] >= 0).nonzero().squeeze(1)  # with an object
        >>> queries, linear_assignment(cost)[0, queries]
        (tensor([0, 1]), tensor([1, 0]))
    """
    return _linear_assignment(cost, num_objects)
