# SPDX-License-Identifier: MIT
"""torchvision weights: their names, the RetinaNet's class 0, and the published files."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import CheckpointError, damaged, first_line
from .weights_detectron2 import Rule

PREFIX = "torchvision/"
DETECTORS = tuple(
    f"{kind}_resnet50_fpn" for kind in ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet")
)
BODIES = tuple(f"resnet{layers}" for layers in (18, 34, 50, 101, 152))
BODIES += "resnext50_32x4d", "resnext101_32x8d"
BATCH_NORM_EPSILON = 1e-5  # of torchvision's BatchNorm2d and FrozenBatchNorm2d
COCO_EPSILON = 0.0  # of detectors published as COCO_V1


def is_published(source: str | Path) -> bool:
    """Returns whether this names weights published by torchvision, and no existing file.

    >>> is_published("torchvision/fasterrcnn_resnet50_fpn")
    True
    """
    return str(source).startswith(PREFIX) and not Path(source).exists()


def published_weights(source: str) -> tuple[dict[str, Any], float]:
    """Loads the weights that torchvision publishes for one of its networks.

    torchvision's loader downloads a file only if it is not in the torch.hub cache, and compares the
    download with the digest in the file's name.

    Args:
        source: ``torchvision/`` followed by the name of a network in `DETECTORS` or `BODIES`.

    Returns:
        The state dict, and the epsilon that its frozen batch norms add to the variance.

    Raises:
        CheckpointError: the name is unknown, or the file is neither cached nor downloadable; the
            message contains the expected path.
        DamagedCheckpointError: the file in the cache is damaged.
    """
    network = source.removeprefix(PREFIX)
    if network not in DETECTORS + BODIES:
        known = ", ".join(DETECTORS + BODIES)
        raise CheckpointError(f"{source}: expected one of {known}")
    weights = newest_weights(network)
    with loading(source, weights):
        state = weights.get_state_dict(check_hash=True, map_location="cpu", weights_only=True)
    return state, COCO_EPSILON if network in DETECTORS else BATCH_NORM_EPSILON


def newest_weights(network: str) -> Any:
    """Returns the weights that torchvision recommends for a network, as an enumeration entry."""
    from torchvision.models import get_model_weights

    # mypy: DEFAULT is a member of the enumeration.
    return get_model_weights(network).DEFAULT  # type: ignore[attr-defined]


def cached_file(weights: Any) -> Path:
    """Returns the path at which torchvision caches a downloaded weights file."""
    return Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]


@contextmanager
def loading(source: str, weights: Any) -> Iterator[None]:
    """Adds the source and the file to errors raised while torchvision loads weights."""
    try:
        # The loader reports downloads on stdout, which is reserved for the results of a command.
        with redirect_stdout(sys.stderr):
            yield
    except OSError as error:
        raise CheckpointError(
            f"{source}: cannot be downloaded ({error}): put {weights.url} at {cached_file(weights)}"
        ) from error
    # A damaged file can raise errors of many types, as in `read_file`.
    except Exception as error:
        raise damaged(cached_file(weights), first_line(error)) from error


def rules(names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """Returns rules from torchvision's names, old and new, to maskrcnn-benchmark's.

    Names that no rule matches are already maskrcnn-benchmark's.

    Args:
        names: names of a state dict, used to count the levels of a pyramid.
    """
    # torchvision numbers the levels of a pyramid from its finest, maskrcnn-benchmark by the stages
    # of the body.
    levels = sum(re.match(r"backbone\.fpn\.inner_blocks\..*weight", k) is not None for k in names)

    def level(match: re.Match[str]) -> str:
        return f"backbone.fpn.fpn_{match[1]}{5 - levels + int(match[2])}."

    def tower(match: re.Match[str], layers: int = 1) -> str:
        kind = {"classification": "cls", "regression": "bbox"}[match[1]]
        return f"rpn.head.{kind}_tower.{layers * int(match[2])}."

    box, mask, keypoint = (f"roi_heads.{head}" for head in ("box", "mask", "keypoint"))
    return (
        # Batch norm counters, and the ImageNet classifier.
        (r".*\.num_batches_tracked$", None),
        (r"fc\.", None),
        # The body, alone or in a detector.
        (r"(?:backbone\.body\.)?(conv1|bn1)\.", r"backbone.body.stem.\1."),
        (r"(layer[1-4])\.", r"backbone.body.\1."),
        (r"backbone\.fpn\.(inner|layer)_blocks\.(\d+)\.(?:0\.)?", level),
        (r"backbone\.fpn\.extra_blocks\.", "backbone.fpn.top_blocks."),
        (r"rpn\.head\.conv\.0\.0\.", "rpn.head.conv."),
        (r"roi_heads\.box_head\.(fc\d)\.", rf"{box}.feature_extractor.\1."),
        (r"roi_heads\.box_predictor\.", f"{box}.predictor."),
        (r"roi_heads\.mask_head\.(mask_fcn\d)\.", rf"{mask}.feature_extractor.\1."),
        (
            r"roi_heads\.mask_head\.(\d+)\.0\.",
            lambda m: f"{mask}.feature_extractor.mask_fcn{int(m[1]) + 1}.",
        ),
        (r"roi_heads\.mask_predictor\.", f"{mask}.predictor."),
        (
            r"roi_heads\.keypoint_head\.(\d+)\.",
            lambda m: f"{keypoint}.feature_extractor.conv_fcn{int(m[1]) // 2 + 1}.",
        ),
        (r"roi_heads\.keypoint_predictor\.", f"{keypoint}.predictor."),
        (r"head\.(classification|regression)_head\.conv\.(\d+)\.0\.", lambda m: tower(m, 2)),
        (r"head\.(classification|regression)_head\.conv\.(\d+)\.", tower),
        (r"head\.classification_head\.cls_logits\.", "rpn.head.cls_logits."),
        (r"head\.regression_head\.bbox_reg\.", "rpn.head.bbox_pred."),
    )


def drop_class_0(
    found: dict[str, Tensor], state: Mapping[str, Any], expected: Mapping[str, Tensor]
) -> None:
    """Removes the logits of a RetinaNet's class 0 if the model does not have that class.

    Args:
        found: the file's tensors under the model's names; modified in place.
        state: the file's tensors under their own names.
        expected: the model's tensors.
    """
    deltas = expected.get("rpn.head.bbox_pred.bias")
    if "head.classification_head.cls_logits.bias" not in state or deltas is None:
        return
    anchors = deltas.numel() // 4
    for target in ("rpn.head.cls_logits.weight", "rpn.head.cls_logits.bias"):
        if target not in found or found[target].dim() != expected[target].dim():
            continue
        if len(found[target]) == len(expected[target]) + anchors:
            by_anchor = found[target].unflatten(0, (anchors, -1))
            found[target] = by_anchor[:, 1:].flatten(0, 1)
