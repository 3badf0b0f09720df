# SPDX-License-Identifier: MIT
"""Helpers of the translations. Values belong to the graph that is being written."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset20 as op

FLOAT, INT64, UINT8 = map(int, (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.UINT8))
HIGHEST = float(np.finfo(np.float32).max)


def constant(value: Any, dtype: Any = None) -> Any:
    """Returns a constant: int64 for integers, float32 for others, unless ``dtype`` is given."""
    array = np.asarray(value, dtype)
    if dtype is None:
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
    return op.Constant(value=ir.tensor(array))


def number(value: Any) -> Any:
    """Returns an integer as ``[1]``; it may be a Python int or a value of the graph."""
    return constant([value]) if isinstance(value, int) else op.Reshape(value, constant([1]))


def float32(value: Any) -> Any:
    """Casts to float32, since most detection operators of ONNX accept only that."""
    return op.Cast(value, to=FLOAT)


def column(table: Any, i: int) -> Any:
    """Returns column ``i`` of a table ``[N, ...]``, as ``[N]``."""
    return op.Gather(table, constant(i), axis=1)


def columns(table: Any, begin: int, end: int) -> Any:
    """Returns columns ``begin`` to ``end`` of a table."""
    return op.Slice(table, constant([begin]), constant([end]), constant([1]))


def size(value: Any, axis: int) -> Any:
    """Returns one of a value's sizes as ``[1]``; ``axis`` -1 is the last."""
    return op.Shape(value, start=axis) if axis == -1 else op.Shape(value, start=axis, end=axis + 1)


def shape(*sizes: Any) -> Any:
    """Concatenates integers and results of :func:`size` to a shape."""
    return op.Concat(*map(number, sizes), axis=0)
