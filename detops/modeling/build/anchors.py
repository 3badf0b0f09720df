"""Builder of anchor generators."""

from collections.abc import Sequence
from typing import Any

from ...config import ConfigError
from ..convention import get_convention
from ..rpn import AnchorGenerator


def sizes_per_level(sizes: Sequence[Any]) -> list[tuple[float, ...]]:
    """Converts ANCHOR_SIZES, with a number or a tuple per level, to tuples."""
    return [(s,) if isinstance(s, (int, float)) else tuple(s) for s in sizes]


def build_anchors(
    cfg: Any,
    section: str,
    stride_key: str,
    sizes: Sequence[tuple[float, ...]],
    levels: int,
) -> tuple[AnchorGenerator, int]:
    """Builds the anchors of MODEL.RPN or MODEL.RETINANET; also returns their number per position.

    Args:
        cfg: the config.
        section: ``RPN`` or ``RETINANET``.
        stride_key: key of the strides in that section.
        sizes: anchor sizes per level.
        levels: number of feature levels.
    """
    part, name = cfg.MODEL[section], f"MODEL.{section}"
    strides = list(part[stride_key])
    if len(sizes) != levels or len(strides) != levels:
        raise ConfigError(
            f"{name}.ANCHOR_SIZES, {name}.{stride_key}: expected one entry per level "
            f"({levels}), got {len(sizes)} and {len(strides)}"
        )
    anchors = AnchorGenerator(
        sizes,
        list(part.ASPECT_RATIOS),
        strides,
        part.STRADDLE_THRESH,
        part.STRIDE_FROM_SIZE,
        get_convention(cfg),
    )
    counts = set(anchors.num_anchors())
    if len(counts) > 1:
        raise ConfigError(
            f"{name}.ANCHOR_SIZES: expected the same number of sizes on every level, because "
            f"the levels share a head, got {list(sizes)}"
        )
    return anchors, counts.pop()
