# SPDX-License-Identifier: MIT
"""A replacement for SciPy's linear_sum_assignment in matchers that call it once per image."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from .. import ops
from ..contract import FLOAT

# Below this many costs, SciPy finishes before these calls reach the op.
MIN_COSTS = 5000


def linear_sum_assignment(
    original: Callable[..., Any], cost_matrix: Any, maximize: bool = False
) -> tuple[Any, Any]:
    """Returns ascending rows and their columns as NumPy arrays.

    Delegates infeasible problems and non-finite costs to the original, which raises its own errors.
    """
    cost = torch.as_tensor(cost_matrix)
    is_supported = cost.dim() == 2 and cost.dtype in FLOAT and cost.device.type == "cpu"
    if not is_supported or cost.numel() < MIN_COSTS or not math.isfinite(cost.sum().item()):
        return original(cost_matrix, maximize) if maximize else original(cost_matrix)
    columns = ops.linear_assignment((-cost if maximize else cost).detach()[None])[0].numpy()
    rows = (columns >= 0).nonzero()[0]
    if len(rows) < min(cost.shape):
        return original(cost_matrix, maximize) if maximize else original(cost_matrix)
    return rows, columns[rows]


def assignment_patches(*modules: str) -> dict[tuple[str, str], Callable[..., Any]]:
    """Returns replacements for modules that import it from SciPy; empty without SciPy."""
    if find_spec("scipy") is None:
        return {}
    return {(module, "linear_sum_assignment"): linear_sum_assignment for module in modules}
