# SPDX-License-Identifier: MIT
"""torchvision's weights: its names, its class 0, and the files that it publishes."""

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
BATCH_NORM_EPSILON = 1e-5  # of its BatchNorm2d and FrozenBatchNorm2d
COCO_EPSILON = 0.0  # of the detectors that it publishes as COCO_V1


def is_published(source: str | Path) -> bool:
    """Whether this names weights that torchvision publishes, and no file that is there.

    >>> is_published("torchvision/fasterrcnn_resnet50_fpn")
    True
    """
    return str(source).startswith(PREFIX) and not Path(source).exists()


def published_weights(source: str) -> tuple[dict[str, Any], float]:
    """The weights that torchvision publishes for one of its networks.

    torchvision's own loader downloads them once, into the cache of torch.hub, and compares what it
    downloads with the digest in the file's name. A file that is in the cache is taken from there.

    Args:
        source: ``torchvision/`` and the network's name, one of `DETECTORS` and `BODIES`.

    Returns:
        The state dict, and what its frozen batch norms add to the variance.

    Raises:
        CheckpointError: the name is none of these, or the file is neither in the cache nor to be
            had from its address; the message says where to put it.
        DamagedCheckpointError: the file in the cache is damaged.
    """
    network = source.removeprefix(PREFIX)
    if network not in DETECTORS + BODIES:
        known = ", ".join(DETECTORS + BODIES)
        raise CheckpointError(f"{source}: torchvision's weights are read of {known}")
    weights = newest_weights(network)
    with loading(source, weights):
        state = weights.get_state_dict(check_hash=True, map_location="cpu", weights_only=True)
    return state, COCO_EPSILON if network in DETECTORS else BATCH_NORM_EPSILON


def newest_weights(network: str) -> Any:
    """The entry of torchvision's enumeration of a network's weights that it recommends."""
    from torchvision.models import get_model_weights

    # mypy: an enumeration, of which DEFAULT is a member.
    return get_model_weights(network).DEFAULT  # type: ignore[attr-defined]


def cached_file(weights: Any) -> Path:
    """Where torchvision keeps a file of weights that it has downloaded."""
    return Path(torch.hub.get_dir()) / "checkpoints" / weights.url.rpartition("/")[2]


@contextmanager
def loading(source: str, weights: Any) -> Iterator[None]:
    """A block in which torchvision loads weights: errors name their source and their file."""
    try:
        # The loader tells on stdout that it downloads, where the results of a command go.
        with redirect_stdout(sys.stderr):
            yield
    except OSError as error:
        raise CheckpointError(
            f"{source}: cannot be downloaded ({error}): put {weights.url} at {cached_file(weights)}"
        ) from error
    # A damaged file fails in many ways, as in `read_file`.
    except Exception as error:
        raise damaged(cached_file(weights), first_line(error)) from error


def rules(names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """From the names of torchvision, old and new, to the family's; all others are the family's.

    Args:
        names: those of a state dict, of which the levels of a pyramid are counted.
    """
    # torchvision counts a pyramid's levels from its finest, the family by the stages of the body.
    levels = sum(re.match(r"backbone\.fpn\.inner_blocks\..*weight", k) is not None for k in names)

    def level(match: re.Match[str]) -> str:
        return f"backbone.fpn.fpn_{match[1]}{5 - levels + int(match[2])}."

    def tower(match: re.Match[str], layers: int = 1) -> str:
        kind = {"classification": "cls", "regression": "bbox"}[match[1]]
        return f"rpn.head.{kind}_tower.{layers * int(match[2])}."

    box, mask, keypoint = (f"roi_heads.{head}" for head in ("box", "mask", "keypoint"))
    return (
        # Counters of batch norm, and the classes of ImageNet.
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
    """Takes out of a RetinaNet the logits of a class 0 that the model does not have.

    Args:
        found: the file's tensors under the model's names; changed in place.
        state: the file's, under its own.
        expected: the model's.
    """
    deltas = expected.get("rpn.head.bbox_pred.bias")
    if "head.classification_head.cls_logits.bias" not in state or deltas is None:
        return
    anchors = deltas.numel() // 4
    for place in ("rpn.head.cls_logits.weight", "rpn.head.cls_logits.bias"):
        if place not in found or found[place].dim() != expected[place].dim():
            continue
        if len(found[place]) == len(expected[place]) + anchors:
            by_anchor = found[place].unflatten(0, (anchors, -1))
            found[place] = by_anchor[:, 1:].flatten(0, 1)
