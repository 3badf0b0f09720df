# SPDX-License-Identifier: MIT
"""Multi-scale deformable attention for packages that call grid_sample once per level.

The first argument of each function is the package's own function, which handles unsupported inputs.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .. import _C, ops
from ..contract import FLOAT

Function = Callable[..., Tensor]


@lru_cache(maxsize=256)
def _levels(shapes: tuple[tuple[int, int], ...]) -> tuple[Tensor, Tensor]:
    sizes = torch.tensor(shapes, dtype=torch.int64).view(-1, 2)
    ends = sizes.prod(1).cumsum(0)
    return sizes, ends - sizes.prod(1)


def _is_supported(*tensors: Tensor) -> bool:
    devices = ("cpu",) if _C.cuda_version is None else ("cpu", "cuda")
    tracing = torch.jit.is_tracing() or torch.onnx.is_in_onnx_export()
    return not tracing and all(t.device.type in devices and t.dtype in FLOAT for t in tensors)


def _attend(value: Tensor, shapes: Any, locations: Tensor, weights: Tensor) -> Tensor:
    pairs = shapes.tolist() if isinstance(shapes, Tensor) else shapes
    levels = _levels(tuple((int(height), int(width)) for height, width in pairs))
    return ops.ms_deform_attn(value, *levels, locations, weights)


def attend_by_level(
    original: Function, value: Tensor, shapes: Any, locations: Tensor, weights: Tensor
) -> Tensor:
    """Accepts locations ``[N, Q, M, L, P, 2]``."""
    if not _is_supported(value, locations, weights):
        return original(value, shapes, locations, weights)
    return _attend(value, shapes, locations, weights)


def attend_module(
    original: Function,
    self: Any,
    value: Tensor,
    value_spatial_shapes: Tensor,
    value_spatial_shapes_list: list[tuple[int, int]],
    level_start_index: Tensor,
    sampling_locations: Tensor,
    attention_weights: Tensor,
    im2col_step: int,
) -> Tensor:
    """Does the same as :func:`attend_by_level`, as a module's ``forward``."""
    if not _is_supported(value, sampling_locations, attention_weights):
        rest = (level_start_index, sampling_locations, attention_weights, im2col_step)
        return original(self, value, value_spatial_shapes, value_spatial_shapes_list, *rest)
    return _attend(value, value_spatial_shapes_list, sampling_locations, attention_weights)


def attend_flat(
    original: Function,
    value: Tensor,
    shapes: Any,
    locations: Tensor,
    weights: Tensor,
    num_points_list: Sequence[int] | None = None,
    method: str = "default",
) -> Tensor:
    """Accepts locations ``[N, Q, M, L * P, 2]``; delegates if P differs between levels."""
    has_equal_points = num_points_list is None or len(set(num_points_list)) == 1
    if not (has_equal_points and method == "default" and _is_supported(value, locations, weights)):
        rest = () if num_points_list is None else (num_points_list, method)
        return original(value, shapes, locations, weights, *rest)
    levels = (len(shapes), locations.size(3) // len(shapes))
    return _attend(value, shapes, locations.unflatten(3, levels), weights.unflatten(3, levels))
