# SPDX-License-Identifier: MIT
"""Patches Python code of mmcv and mmdet that bypasses the compiled module.

This covers deformable attention on CPU, which mmcv computes in a loop, and mmdet's matchers.
"""

from collections.abc import Callable
from typing import Any

from .assignment import assignment_patches
from .attention import attend_by_level
from .patching import Patch

_ASSIGNERS = "mmdet.models.task_modules.assigners."
FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("mmcv.ops.multi_scale_deform_attn", "multi_scale_deformable_attn_pytorch"): attend_by_level,
    **assignment_patches(f"{_ASSIGNERS}hungarian_assigner", f"{_ASSIGNERS}topk_hungarian_assigner"),
}


def patch() -> Patch:
    """Applies the patch until it is restored."""
    return Patch(FUNCTIONS)
