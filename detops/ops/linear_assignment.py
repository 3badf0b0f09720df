"""The cheapest matching of queries and objects."""

from torch import Tensor

from ..registration import plain

_linear_assignment = plain("linear_assignment")


def linear_assignment(cost: Tensor, num_objects: Tensor | None = None) -> Tensor:
    """Matches queries with objects, one to one, so that the sum of the costs is least.

    The matcher of DETR and its relatives, for a batch of images at once. Each query gets an object
    or each object a query, whichever are fewer. The result is exact: shortest augmenting paths
    (Jonker and Volgenant, "A Shortest Augmenting Path Algorithm for Dense and Sparse Linear
    Assignment Problems", 1987) in float64, whatever the dtype of the costs, so that the total is
    that of ``scipy.optimize.linear_sum_assignment``. Where several matchings have the least total,
    which of them it is is not specified, and may be another than SciPy's, but the same on every
    device, instruction set and number of threads.

    A pair whose cost is NaN or infinite (or beyond 1e200) is never matched, where SciPy raises
    errors. There are as many pairs as the other costs allow, and of those matchings it is the
    cheapest.

    Args:
        cost: ``[B, N, M]``, of N queries and M objects for each of B images. Either may be more.
        num_objects: integer ``[B]``: how many of its M columns an image has, in a batch that is
            padded; what the others hold does not matter. M for all by default.

    Returns:
        int64 ``[B, N]``: the object of each query, or -1. Not differentiable.

    Raises:
        RuntimeError: wrong shape, dtype or device; B * N * M * min(N, M) above 2^40, which would
            take longer than minutes; on the CPU also a number of objects below 0 or above M, which
            CUDA kernels take as 0 and M.

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
