# SPDX-License-Identifier: MIT
"""Pasting of masks without a loop over them."""

from typing import Any

from onnxscript import opset20 as op

from .values import FLOAT, HIGHEST, UINT8, column, constant, float32, shape, size


def _interpolation_weights(first: Any, last: Any, cells: Any, pixels: Any) -> Any:
    """Returns ``[N, pixels, cells]``, the weight of each cell in a pixel along one axis.

    Bilinear interpolation between cell centres is a hat function two cells wide. Values beyond the
    mask are 0; see csrc/math/masks.h.
    """
    extent = op.Sub(last, first)
    is_valid = op.And(op.Greater(extent, constant(0.0)), op.LessOrEqual(extent, constant(HIGHEST)))
    broadcast = [op.Unsqueeze(v, constant([1, 2])) for v in (first, extent, is_valid)]
    cell, pixel = (
        op.Cast(op.Range(constant(0), op.Squeeze(n), constant(1)), to=FLOAT)
        for n in (cells, pixels)
    )
    pixel = op.Add(op.Unsqueeze(pixel, constant([1])), constant(0.5))
    position = op.Div(op.Sub(pixel, broadcast[0]), broadcast[1])
    position = op.Sub(op.Mul(position, op.Cast(cells, to=FLOAT)), constant(0.5))
    hat = op.Relu(op.Sub(constant(1.0), op.Abs(op.Sub(position, cell))))
    return op.Where(broadcast[2], hat, constant(0.0))


def paste_masks_in_image(masks: Any, boxes: Any, height: Any, width: Any, threshold: float) -> Any:
    """Computes ``row_weights @ cells @ column_weights``, two products for all masks together."""
    boxes, masks = float32(boxes), float32(masks)
    count, mask_height, mask_width = size(boxes, 0), size(masks, -2), size(masks, -1)
    cells = op.Reshape(masks, op.Concat(count, mask_height, mask_width, axis=0), allowzero=1)
    height, width = shape(height), shape(width)
    row_weights = _interpolation_weights(column(boxes, 1), column(boxes, 3), mask_height, height)
    column_weights = _interpolation_weights(column(boxes, 0), column(boxes, 2), mask_width, width)
    pasted = op.MatMul(row_weights, op.MatMul(cells, op.Transpose(column_weights, perm=[0, 2, 1])))
    if threshold >= 0:
        return op.GreaterOrEqual(pasted, constant(float(threshold)))
    scaled = op.Mul(pasted, constant(255.0))
    return op.Cast(op.Clip(scaled, constant(0.0), constant(255.0)), to=UINT8)
