# SPDX-License-Identifier: MIT
"""Questions about sizes, of which the graph of an export is full."""

from typing import Any

import numpy as np
from onnxscript import opset20 as op

from .values import constant


def at_most(a: Any, b: Any) -> Any:
    """A bound that int64 cannot hold stands for infinity, and holds."""
    if isinstance(b, int) and b > np.iinfo(np.int64).max:
        return constant(True, bool)
    return op.LessOrEqual(a, b)
