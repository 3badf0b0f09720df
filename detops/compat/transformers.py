# SPDX-License-Identifier: MIT
"""Patches deformable attention and matchers of transformers, and torchvision, which it calls."""

from collections.abc import Callable
from typing import Any

from .assignment import assignment_patches
from .attention import attend_by_level, attend_flat, attend_module
from .patching import Patch, patch_installed

_MODULES = (
    "deformable_detr grounding_dino lw_detr mm_grounding_dino omdet_turbo pp_doclayout_v2 "
    "pp_doclayout_v3 pp_doclayout_v4 rf_detr rt_detr"
).split()
_BY_LEVEL = ("mask2former", "oneformer")
_FLAT = ("d_fine", "deimv2", "rt_detr_v2")


def _model(name: str) -> str:
    return f"transformers.models.{name}.modeling_{name}"


FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    **{(_model(name), "MultiScaleDeformableAttention.forward"): attend_module for name in _MODULES},
    **{(_model(name), "multi_scale_deformable_attention"): attend_by_level for name in _BY_LEVEL},
    **{(_model(name), "multi_scale_deformable_attention_v2"): attend_flat for name in _FLAT},
}
_LOSSES = "deformable_detr for_object_detection grounding_dino lw_detr rf_detr rt_detr".split()
_SEGMENTERS = "eomt eomt_dinov3 mask2former maskformer oneformer videomt".split()
MATCHERS = assignment_patches(
    *(f"transformers.loss.loss_{name}" for name in _LOSSES), *map(_model, _SEGMENTERS)
)


def patch() -> Patch:
    """Applies the patch until it is restored."""
    return patch_installed("transformers", FUNCTIONS | MATCHERS)
