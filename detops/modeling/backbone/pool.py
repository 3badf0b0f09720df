"""Max-pooling to half the size."""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..symbolic import exporting, statically_true


def max_pool(x: Tensor, kernel: int) -> Tensor:
    """Max-pools ``kernel`` x ``kernel`` pixels with stride 2.

    Args:
        x: ``[N, C, H, W]``.
        kernel: odd.

    Returns:
        ``[N, C, H / 2, W / 2]``, rounded up.
    """
    border = kernel // 2
    if not exporting() or all(statically_true(side % 2 == 0) for side in x.shape[-2:]):
        return F.max_pool2d(x, kernel, 2, border)
    # F.max_pool2d would add guards on even sides, and the graph would reject other images.
    x = F.pad(x, [border] * 4, value=-torch.inf)
    return x.unfold(2, kernel, 2).unfold(3, kernel, 2).amax((-2, -1))
