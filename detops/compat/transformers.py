# SPDX-License-Identifier: MIT
"""Patches deformable attention and matchers of transformers, and torchvision, which it calls."""

from collections.abc import Callable
from typing import Any

from .assignment import called_in
from .attention import by_level, in_one_row, module
from .bodies import Patch, patch_installed

_MODULES = (
    "deformable_detr grounding_dino lw_detr mm_grounding_dino omdet_turbo pp_doclayout_v2 "
    "pp_doclayout_v3 pp_doclayout_v4 rf_detr rt_detr"
).split()
_BY_LEVEL = ("mask2former", "oneformer")
_IN_ONE_ROW = ("d_fine", "deimv2", "rt_detr_v2")


def _model(name: str) -> str:
    return f"transformers.models.{name}.modeling_{name}"


FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(_model(name), "MultiScaleDeformableAttention.forward"): module for name in _MODULES},
    **{(_model(name), "multi_scale_deformable_attention"): by_level for name in _BY_LEVEL},
    **{(_model(name), "multi_scale_deformable_attention_v2"): in_one_row for name in _IN_ONE_ROW},
}
_LOSSES = "deformable_detr for_object_detection grounding_dino lw_detr rf_detr rt_detr".split()
_SEGMENTERS = "eomt eomt_dinov3 mask2former maskformer oneformer videomt".split()
MATCHERS = called_in(
    *(f"transformers.loss.loss_{name}" for name in _LOSSES), *map(_model, _SEGMENTERS)
)


def patch() -> Patch:
    """Applies the patch until it is restored."""
    return patch_installed("transformers", FUNCTIONS | MATCHERS)
