"""contiguous().view(-1): an op in the manner of ATen's own."""

import torch
from torch import Tensor

from .. import _C


def gdh(x: Tensor) -> Tensor:
    """``x.contiguous().view(-1)``, differentiable any number of times.

    Args:
        x: any shape and dtype, strided.

    Returns:
        ``[numel]``: a view of ``x`` where that is contiguous, else a copy.

    Raises:
        RuntimeError: ``x`` is sparse or of another layout than strided.
    """
    return _C.gdh(x)


def register_tensor_methods() -> None:
    """Makes :func:`gdh` a method of every tensor: ``x.gdh()``."""
    torch.Tensor.gdh = gdh  # type: ignore[attr-defined]
