# SPDX-License-Identifier: MIT
"""The box coder; see csrc/math/box_coder.h."""

from collections.abc import Sequence
from typing import Any

from onnxscript import opset20 as op

from .values import constant, float32


def _corners(boxes: Any) -> Any:
    return op.Split(boxes, num_outputs=2, axis=-1)


def _centre_and_size(boxes: Any) -> Any:
    low, high = _corners(float32(boxes))
    size = op.Sub(high, low)
    return op.Add(low, op.Mul(size, constant(0.5))), size


def encode_boxes(boxes: Any, anchors: Any, weights: Sequence[float]) -> Any:
    """Translates the encoding of boxes, in the dtype of both inputs."""
    centre, size = _centre_and_size(boxes)
    anchor_centre, anchor_size = _centre_and_size(anchors)
    shift = op.Div(op.Sub(centre, anchor_centre), anchor_size)
    scale = op.Log(op.Div(size, anchor_size))
    deltas = op.Concat(shift, scale, axis=-1)
    return op.CastLike(op.Mul(deltas, constant(list(map(float, weights)))), boxes)


def decode_boxes(deltas: Any, anchors: Any, weights: Sequence[float], clip: float) -> Any:
    """Translates the decoding of deltas ``[N, 4k]`` to k boxes per anchor."""
    centre, size = (op.Unsqueeze(v, constant([1])) for v in _centre_and_size(anchors))
    # Not -1 for k: without rows, it would be ambiguous.
    boxes = op.Reshape(float32(deltas), constant([0, int(deltas.shape[1]) // 4, 4]), allowzero=0)
    shift, scale = _corners(op.Div(boxes, constant(list(map(float, weights)))))
    middle = op.Add(op.Mul(shift, size), centre)
    half = op.Mul(op.Mul(op.Exp(op.Min(scale, constant(float(clip)))), size), constant(0.5))
    corners = op.Concat(op.Sub(middle, half), op.Add(middle, half), axis=-1)
    return op.CastLike(op.Reshape(corners, op.Shape(deltas)), deltas)
