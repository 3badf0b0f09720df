# SPDX-License-Identifier: MIT
"""Deformable and Winograd convolutions."""

from collections.abc import Sequence
from math import prod
from typing import Any

from onnxscript import opset20 as op


def deform_conv2d(
    input: Any,
    offset: Any,
    mask: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> Any:
    """Translates to DeformConv, which is the same operator."""
    kernel = [int(n) for n in weight.shape[2:]]
    return op.DeformConv(
        input,
        weight,
        offset,
        bias,
        mask,
        dilations=list(dilation),
        group=int(input.shape[1]) // int(weight.shape[1]),
        kernel_shape=kernel,
        offset_group=int(offset.shape[1]) // (2 * prod(kernel)),
        pads=[*padding, *padding],
        strides=list(stride),
    )


def winograd_conv2d(input: Any, weight: Any, bias: Any, padding: Sequence[int]) -> Any:
    """Translates to a plain convolution: the runtime chooses its own algorithm."""
    inputs = (input, weight) if bias is None else (input, weight, bias)
    return op.Conv(*inputs, kernel_shape=[3, 3], pads=[*padding, *padding])
