# SPDX-License-Identifier: MIT
"""RoIAlign on one feature map, on several, and of rotated boxes."""

from collections.abc import Sequence
from math import log2
from typing import Any

from onnxscript import opset20 as op

from .values import FLOAT, INT64, column, columns, constant, float32, shape, size


def roi_align(
    input: Any,
    boxes: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Any:
    """Translates to RoiAlign, which is the same operator."""
    pooled = op.RoiAlign(
        float32(input),
        float32(columns(boxes, 1, 5)),
        op.Cast(column(boxes, 0), to=INT64),
        coordinate_transformation_mode="half_pixel" if aligned else "output_half_pixel",
        output_height=pooled_height,
        output_width=pooled_width,
        sampling_ratio=max(0, sampling_ratio),
        spatial_scale=float(spatial_scale),
    )
    return op.CastLike(pooled, input)


def multiscale_roi_align(
    inputs: Sequence[Any],
    boxes: Any,
    spatial_scales: Sequence[float],
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
    canonical_scale: float,
    canonical_level: int,
) -> Any:
    """Pools the boxes of each level on it, then restores their order."""
    pooling = pooled_height, pooled_width, sampling_ratio, aligned
    if len(inputs) == 1:
        return roi_align(inputs[0], boxes, spatial_scales[0], *pooling)
    boxes = float32(boxes)
    first = round(-log2(spatial_scales[0]))
    # As in roi_level, csrc/math/roi.h: a box is on the level of the last bound that it reaches.
    sides = op.Sub(columns(boxes, 3, 5), columns(boxes, 1, 3))
    ratio = op.Div(
        op.Sqrt(op.Mul(column(sides, 0), column(sides, 1))), constant(float(canonical_scale))
    )
    bounds = [2.0 ** (i + first - canonical_level - 1e-6) for i in range(1, len(inputs))]
    reached = op.GreaterOrEqual(op.Unsqueeze(ratio, constant([1])), constant(bounds))
    level = op.ReduceSum(op.Cast(reached, to=INT64), constant([1]), keepdims=0)
    pooled, indices = [], []
    for i, (map_, scale) in enumerate(zip(inputs, spatial_scales, strict=True)):
        rows = op.Reshape(op.NonZero(op.Equal(level, constant(i))), constant([-1]))
        pooled.append(roi_align(map_, op.Gather(boxes, rows), scale, *pooling))
        indices.append(rows)
    indices = op.Concat(*indices, axis=0)
    _, inverse = op.TopK(indices, op.Shape(indices), largest=0)
    return op.Gather(op.Concat(*pooled, axis=0), inverse)


def roi_align_rotated(
    input: Any,
    boxes: Any,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
) -> Any:
    """Samples all boxes with one grid on all images, stacked vertically.

    The number of sampling points must be fixed: a grid has the same size for every box.
    """
    if sampling_ratio < 1:
        raise ValueError(
            "detops.roi_align_rotated: sampling_ratio must be at least 1 for ONNX, which has no "
            f"operator for samples whose number depends on the box, got {sampling_ratio}"
        )
    boxes = float32(boxes)
    count, height, width = size(boxes, 0), size(input, 2), size(input, 3)
    map_height, map_width = (op.Cast(n, to=FLOAT) for n in (height, width))
    scaled = op.Mul(columns(boxes, 1, 5), constant(float(spatial_scale)))
    centre = op.Sub(columns(scaled, 0, 2), constant(0.5))
    angle = op.Mul(column(boxes, 5), constant(0.017453292519943295))

    def sample_offsets(side: int, bins: int) -> Any:
        n = bins * sampling_ratio
        steps = [(i + 0.5) / n - 0.5 for i in range(n)]
        return op.Mul(op.Unsqueeze(column(scaled, side), constant([1])), constant(steps))

    across = op.Unsqueeze(sample_offsets(2, pooled_width), constant([1]))
    down = op.Unsqueeze(sample_offsets(3, pooled_height), constant([2]))
    sine, cosine, x, y = (
        op.Unsqueeze(v, constant([1, 2]))
        for v in (op.Sin(angle), op.Cos(angle), column(centre, 0), column(centre, 1))
    )
    x = op.Add(x, op.Add(op.Mul(down, sine), op.Mul(across, cosine)))
    y = op.Add(y, op.Sub(op.Mul(down, cosine), op.Mul(across, sine)))

    def is_within(v: Any, n: Any) -> Any:
        return op.And(op.GreaterOrEqual(v, constant(-1.0)), op.LessOrEqual(v, n))

    inside = op.And(is_within(x, map_width), is_within(y, map_height))
    # Clamps to the feature map before it moves samples to the image of the box: a sample on the
    # last row must not read the image below.
    one, zero = constant(1.0), constant(0.0)
    x = op.Min(op.Max(x, zero), op.Sub(map_width, one))
    y = op.Min(op.Max(y, zero), op.Sub(map_height, one))
    image = op.Unsqueeze(column(boxes, 0), constant([1, 2]))
    all_rows = op.Mul(op.Cast(size(input, 0), to=FLOAT), map_height)
    y = op.Add(y, op.Mul(image, map_height))

    def normalise(v: Any, n: Any) -> Any:
        return op.Sub(op.Div(op.Add(op.Add(v, v), one), n), one)

    grid = op.Concat(
        op.Unsqueeze(normalise(x, map_width), constant([3])),
        op.Unsqueeze(normalise(y, all_rows), constant([3])),
        axis=3,
    )
    rows, cols = pooled_height * sampling_ratio, pooled_width * sampling_ratio
    grid = op.Reshape(grid, constant([1, -1, cols, 2]))
    maps = op.Transpose(float32(input), perm=[1, 0, 2, 3])
    maps = op.Reshape(maps, op.Concat(constant([1]), size(input, 1), constant([-1]), width, axis=0))
    samples = op.GridSample(maps, grid, align_corners=0, mode="linear", padding_mode="border")
    bins = shape(size(input, 1), count, pooled_height, sampling_ratio, pooled_width, sampling_ratio)
    keep = op.Cast(op.Reshape(inside, shape(1, count, *(rows, cols))), to=FLOAT)
    samples = op.Mul(op.Reshape(samples, shape(size(input, 1), count, rows, cols)), keep)
    pooled = op.ReduceMean(op.Reshape(samples, bins), constant([3, 5]), keepdims=0)
    return op.CastLike(op.Transpose(pooled, perm=[1, 0, 2, 3]), input)
