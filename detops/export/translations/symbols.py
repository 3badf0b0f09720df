# SPDX-License-Identifier: MIT
"""Comparisons of symbolic sizes, which are common in exported graphs."""

from typing import Any

import numpy as np
from onnxscript import opset20 as op

from .values import constant


def at_most(a: Any, b: Any) -> Any:
    """Translates ``a <= b``; a bound too large for int64 stands for infinity, so it holds."""
    if isinstance(b, int) and b > np.iinfo(np.int64).max:
        return constant(True, bool)
    return op.LessOrEqual(a, b)
