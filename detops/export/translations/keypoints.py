# SPDX-License-Identifier: MIT
"""Maxima of heat maps; see csrc/math/heatmaps_to_keypoints.h."""

from typing import Any

import numpy as np
from onnxscript import FLOAT as Float
from onnxscript import opset18 as op
from onnxscript import script

from .values import FLOAT, INT64, columns, constant, float32, shape
from .values import size as size_of

FloatTensor = Float[...]
MAX_PIXELS_PER_CELL = 16  # along an axis


# mypy: disable-error-code="name-defined,no-untyped-def,valid-type"
@script(default_opset=op)
def _search(
    maps: FloatTensor,
    pixels: FloatTensor,
    cells: FloatTensor,
    fold: FloatTensor,
    found: FloatTensor,
) -> FloatTensor:
    """Searches one detection at a time: all maps at the size of the largest box are too large."""
    size = op.Cast(op.Shape(fold, start=1, end=2), to=FLOAT)
    for i in range(op.Squeeze(op.Shape(pixels, start=0, end=1))):
        # Matrices of bicubic interpolation from cells to pixels, for the width and the height.
        sides = op.Gather(pixels, i)
        pixel = op.Cast(
            op.Range(0, op.Cast(op.ReduceMax(sides, keepdims=0), to=INT64), 1), to=FLOAT
        )
        position = (pixel + 0.5) * (size / op.Unsqueeze(sides, 1)) - 0.5
        t = op.Abs(op.Unsqueeze(position, 2) - cells)
        near = (1.25 * t - 2.25) * t * t + 1.0
        far = ((t - 5.0) * t + 8.0) * t * -0.75 + 3.0
        enlarge = op.MatMul(op.Where(t <= 1.0, near, op.Where(t < 2.0, far, 0.0)), fold)
        count = op.Cast(sides, to=INT64)
        across = op.Slice(op.Gather(enlarge, 0), [0], op.Slice(count, [0], [1], [0]), [0])
        down = op.Slice(op.Gather(enlarge, 1), [0], op.Slice(count, [1], [2], [0]), [0])
        rows = op.MatMul(op.Gather(maps, i), op.Transpose(across, perm=[1, 0]))
        flat = op.Reshape(op.MatMul(down, rows), [0, -1])
        index = op.Cast(op.ArgMax(flat, axis=1), to=FLOAT)
        width = op.Gather(sides, 0)
        row = op.Floor((index + 0.5) / width)
        result = op.Concat(index - row * width, row, op.ReduceMax(flat, [1]), axis=1)
        found = op.ScatterND(found, op.Reshape(i, [1, 1]), op.Unsqueeze(result, 0))
    return found


def heatmaps_to_keypoints(maps: Any, boxes: Any) -> tuple[Any, Any]:
    """Returns the position of each heat map's maximum in its box, and the maximum."""
    boxes = float32(boxes)
    size = int(maps.shape[-1])
    fold = np.zeros((size + 4, size), np.float32)
    fold[range(size + 4), np.clip(np.arange(-2, size + 2), 0, size - 1)] = 1
    sides = op.Max(op.Sub(columns(boxes, 2, 4), columns(boxes, 0, 2)), constant(1.0))
    pixels = op.Min(op.Ceil(sides), constant(float(MAX_PIXELS_PER_CELL * size)))
    cells = constant(np.arange(-2.0, size + 2))
    initial = op.Expand(constant(0.0), shape(size_of(boxes, 0), int(maps.shape[1]), 3))
    found = _search(float32(maps), pixels, cells, constant(fold), initial)
    cell, best = (
        op.Slice(found, constant([i]), constant([j]), constant([2])) for i, j in ((0, 2), (2, 3))
    )
    corner, scale = (
        op.Unsqueeze(v, constant([1])) for v in (columns(boxes, 0, 2), op.Div(sides, pixels))
    )
    xy = op.Add(corner, op.Mul(op.Add(cell, constant(0.5)), scale))
    ones = op.Add(op.Mul(best, constant(0.0)), constant(1.0))
    return op.Concat(xy, ones, axis=2), op.Squeeze(best, constant([2]))
