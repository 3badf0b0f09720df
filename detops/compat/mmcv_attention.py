# SPDX-License-Identifier: MIT
"""mmcv's deformable attention on a CPU, where mmcv calls no compiled half but a loop in PyTorch."""

from collections.abc import Callable
from typing import Any

from .attention import by_level
from .bodies import Patch

FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("mmcv.ops.multi_scale_deform_attn", "multi_scale_deformable_attn_pytorch"): by_level,
}


def patch() -> Patch:
    """Until it is restored."""
    return Patch(FUNCTIONS)
