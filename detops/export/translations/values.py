# SPDX-License-Identifier: MIT
"""What the translations share. A value is one of the graph that is being written."""

from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript import opset20 as op

FLOAT, INT64, UINT8 = map(int, (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.UINT8))
HIGHEST = float(np.finfo(np.float32).max)


def constant(value: Any, dtype: Any = None) -> Any:
    """Whole numbers are int64, others float32, unless ``dtype`` says otherwise."""
    array = np.asarray(value, dtype)
    if dtype is None:
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
    return op.Constant(value=ir.tensor(array))


def number(value: Any) -> Any:
    """A whole number ``[1]``, which may be known or one of the graph."""
    return constant([value]) if isinstance(value, int) else op.Reshape(value, constant([1]))


def float32(value: Any) -> Any:
    """In float32, which is what most of ONNX's operators of detection take."""
    return op.Cast(value, to=FLOAT)


def column(table: Any, i: int) -> Any:
    """Column ``i`` of a table ``[N, ...]``, as ``[N]``."""
    return op.Gather(table, constant(i), axis=1)


def columns(table: Any, begin: int, end: int) -> Any:
    """Columns ``begin`` to ``end`` of a table."""
    return op.Slice(table, constant([begin]), constant([end]), constant([1]))


def size(value: Any, axis: int) -> Any:
    """One of its sizes, ``[1]``; ``axis`` -1 is the last."""
    return op.Shape(value, start=axis) if axis == -1 else op.Shape(value, start=axis, end=axis + 1)


def shape(*sizes: Any) -> Any:
    """A shape of numbers and of what :func:`size` gives."""
    return op.Concat(*map(number, sizes), axis=0)
