# SPDX-License-Identifier: MIT
"""Pasting of masks without a loop over them."""

from typing import Any

from onnxscript import opset20 as op

from .values import FLOAT, HIGHEST, UINT8, column, constant, float32, shape, size


def _weights(first: Any, last: Any, cells: Any, pixels: Any) -> Any:
    """Returns ``[N, pixels, cells]``, the weight of each cell in a pixel along one axis.

    Bilinear interpolation between cell centres is a hat function two cells wide. Values beyond the
    mask are 0; see csrc/math/masks.h.
    """
    extent = op.Sub(last, first)
    solid = op.And(op.Greater(extent, constant(0.0)), op.LessOrEqual(extent, constant(HIGHEST)))
    across = [op.Unsqueeze(v, constant([1, 2])) for v in (first, extent, solid)]
    cell, pixel = (
        op.Cast(op.Range(constant(0), op.Squeeze(n), constant(1)), to=FLOAT)
        for n in (cells, pixels)
    )
    pixel = op.Add(op.Unsqueeze(pixel, constant([1])), constant(0.5))
    at = op.Div(op.Sub(pixel, across[0]), across[1])
    at = op.Sub(op.Mul(at, op.Cast(cells, to=FLOAT)), constant(0.5))
    hat = op.Relu(op.Sub(constant(1.0), op.Abs(op.Sub(at, cell))))
    return op.Where(across[2], hat, constant(0.0))


def paste_masks_in_image(masks: Any, boxes: Any, height: Any, width: Any, threshold: float) -> Any:
    """Computes ``rows @ cells @ columns``: two matrix products for all masks together."""
    boxes, masks = float32(boxes), float32(masks)
    count, high, wide = size(boxes, 0), size(masks, -2), size(masks, -1)
    cells = op.Reshape(masks, op.Concat(count, high, wide, axis=0), allowzero=1)
    height, width = shape(height), shape(width)
    rows = _weights(column(boxes, 1), column(boxes, 3), high, height)
    across = _weights(column(boxes, 0), column(boxes, 2), wide, width)
    pasted = op.MatMul(rows, op.MatMul(cells, op.Transpose(across, perm=[0, 2, 1])))
    if threshold >= 0:
        return op.GreaterOrEqual(pasted, constant(float(threshold)))
    scaled = op.Mul(pasted, constant(255.0))
    return op.Cast(op.Clip(scaled, constant(0.0), constant(255.0)), to=UINT8)
