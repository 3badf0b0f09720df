# SPDX-License-Identifier: MIT
"""detectron2 weights: their names and their order of classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

# A pattern at the start of a name, and its replacement. None drops the tensor.
Rule = tuple[str, str | Callable[[re.Match[str]], str] | None]

BOX, MASK, KEYPOINT = (f"roi_heads.{head}" for head in ("box", "mask", "keypoint"))
BATCH_NORM_EPSILON = 1e-5  # of detectron2's batch norms, frozen or not
# Prefixes that occur in detectors, but not in a body alone.
DETECTOR = ("proposal_generator.", "head.cls_subnet.")
# Number of zero rows to add for the background, which has no box deltas and no masks in detectron2.
BACKGROUND = {f"{BOX}.predictor.bbox_pred": 4, f"{MASK}.predictor.mask_fcn_logits": 1}


def _stage(match: re.Match[str]) -> str:
    return f"backbone.body.layer{int(match[1]) - 1}.{match[2]}."


def _level(match: re.Match[str]) -> str:
    kind = {"lateral": "inner", "output": "layer"}[match[1]]
    return f"backbone.fpn.fpn_{kind}{int(match[2]) - 1}."


_BODY = r"(?:backbone\.)?(?:bottom_up\.)?"
_BLOCK = rf"(?:{_BODY}|roi_heads\.)res([2-5])\.(\d+)\."
# From detectron2's names to maskrcnn-benchmark's, which this package uses.
RULES: tuple[Rule, ...] = (
    (r".*\.num_batches_tracked$", None),
    # Pixel statistics come from the config; the ImageNet classifier is not needed.
    (r"pixel_(mean|std)$", None),
    (r"stem\.fc\.", None),
    (rf"{_BODY}stem\.conv1\.norm\.", "backbone.body.stem.bn1."),
    (rf"{_BODY}stem\.", "backbone.body.stem."),
    (rf"{_BLOCK}shortcut\.norm\.", lambda m: f"{_stage(m)}downsample.1."),
    (rf"{_BLOCK}shortcut\.", lambda m: f"{_stage(m)}downsample.0."),
    (rf"{_BLOCK}conv(\d)\.norm\.", lambda m: f"{_stage(m)}bn{m[3]}."),
    (rf"{_BLOCK}conv2_offset\.", lambda m: f"{_stage(m)}conv2.offset."),
    (_BLOCK, _stage),
    (r"backbone\.fpn_(lateral|output)(\d)\.", _level),
    (r"backbone\.top_block\.", "backbone.fpn.top_blocks."),
    (r"(?:proposal_generator\.)?anchor_generator\.", "rpn.anchor_generator."),
    (r"proposal_generator\.rpn_head\.conv\.", "rpn.head.conv."),
    (r"proposal_generator\.rpn_head\.objectness_logits\.", "rpn.head.cls_logits."),
    (r"proposal_generator\.rpn_head\.anchor_deltas\.", "rpn.head.bbox_pred."),
    (r"roi_heads\.box_head\.fc([12])\.", lambda m: f"{BOX}.feature_extractor.fc{int(m[1]) + 5}."),
    (r"roi_heads\.box_predictor\.", f"{BOX}.predictor."),
    (r"roi_heads\.mask_head\.(mask_fcn\d)\.", rf"{MASK}.feature_extractor.\1."),
    (r"roi_heads\.mask_head\.deconv\.", f"{MASK}.predictor.conv5_mask."),
    (r"roi_heads\.mask_head\.predictor\.", f"{MASK}.predictor.mask_fcn_logits."),
    (r"roi_heads\.keypoint_head\.(conv_fcn\d)\.", rf"{KEYPOINT}.feature_extractor.\1."),
    (r"roi_heads\.keypoint_head\.score_lowres\.", f"{KEYPOINT}.predictor.kps_score_lowres."),
    (r"head\.(cls|bbox)_subnet\.", r"rpn.head.\1_tower."),
    (r"head\.cls_score\.", "rpn.head.cls_logits."),
    (r"head\.bbox_pred\.", "rpn.head.bbox_pred."),
)


def is_detectron2(names: Iterable[str]) -> bool:
    """Returns whether these names are those of a detectron2 detector or body."""
    return any(re.match(rf"{_BODY}stem\.conv1\.norm\.|{_BLOCK}", name) for name in names)


def is_detector(names: Iterable[str]) -> bool:
    """Returns whether detectron2 weights contain more than a body."""
    return any(name.startswith(DETECTOR) for name in names)


def background_first(found: dict[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Moves the background from last to first: detectron2's classes 0..C - 1 become 1..C."""
    for target, value in found.items():
        layer = target.rpartition(".")[0]
        if value.dim() != expected[target].dim():
            continue
        if layer == f"{BOX}.predictor.cls_score":
            found[target] = value.roll(1, 0)
        elif layer in BACKGROUND:
            zeros = value.new_zeros(BACKGROUND[layer], *value.shape[1:])
            found[target] = torch.cat([zeros, value])
