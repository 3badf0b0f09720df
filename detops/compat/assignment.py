# SPDX-License-Identifier: MIT
"""SciPy's linear_sum_assignment for the packages whose matchers call it, image by image."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from .. import ops
from ..contract import FLOAT

# Of fewer costs SciPy has found the answer before these calls have reached an op.
FEW = 5000


def linear_sum_assignment(
    original: Callable[..., Any], cost_matrix: Any, maximize: bool = False
) -> tuple[Any, Any]:
    """Rows, ascending, and their columns, as arrays of NumPy.

    What has no solution, or costs that are no numbers, are left to the original, for its errors.
    """
    cost = torch.as_tensor(cost_matrix)
    ours = cost.dim() == 2 and cost.dtype in FLOAT and cost.device.type == "cpu"
    if not ours or cost.numel() < FEW or not math.isfinite(cost.sum().item()):
        return original(cost_matrix, maximize) if maximize else original(cost_matrix)
    columns = ops.linear_assignment((-cost if maximize else cost).detach()[None])[0].numpy()
    rows = (columns >= 0).nonzero()[0]
    if len(rows) < min(cost.shape):
        return original(cost_matrix, maximize) if maximize else original(cost_matrix)
    return rows, columns[rows]


def called_in(*modules: str) -> dict[tuple[str, str], Callable[..., Any]]:
    """The replacement in modules that import it from SciPy, where that is installed."""
    if find_spec("scipy") is None:
        return {}
    return {(module, "linear_sum_assignment"): linear_sum_assignment for module in modules}
