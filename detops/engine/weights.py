# SPDX-License-Identifier: MIT
"""Weights of other libraries: detectors of maskrcnn-benchmark, detectron2, torchvision; ResNets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..messages import shown
from . import weights_detectron2 as detectron2
from . import weights_torchvision as torchvision
from .checkpoint import CheckpointError, list_some, read_file
from .pickled import is_pickle, read_pickle
from .weights_detectron2 import Rule

ANCHORS = "rpn.anchor_generator.cell_anchors."
# Layers whose number of outputs depends on the number of classes or keypoints.
PREDICTORS = (
    "roi_heads.box.predictor.cls_score",
    "roi_heads.box.predictor.bbox_pred",
    "roi_heads.mask.predictor.mask_fcn_logits",
    "roi_heads.keypoint.predictor.kps_score_lowres",
)
RETINANET_PREDICTORS = ("rpn.head.cls_logits",)
# Tolerated relative difference of anchor sides. Libraries round them differently, by up to a tenth
# for small anchors.
ANCHOR_TOLERANCE = 0.2

State = dict[str, Tensor]


class WeightsReport(NamedTuple):
    """Result of loading tensors from a file into a model.

    Args:
        source: the file.
        loaded: number of model tensors that were filled.
        unused: tensors of the file that have no counterpart in the model.
        missing: tensors of the model that have no counterpart in the file; they are unchanged.
        left_out: predictors of the model for other classes than the file's, each with both shapes;
            they are unchanged as well.

    Example:
        >>> WeightsReport("weights.pth", loaded=2, unused=("fc.bias",), missing=()).unused
        ('fc.bias',)
    """

    source: str
    loaded: int
    unused: tuple[str, ...]
    missing: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Returns a summary line, and one line for each predictor that was left out."""
        text = f"{self.source}: {self.loaded} tensors loaded"
        for title, names in (("unused", self.unused), ("missing", self.missing)):
            text += f"; {len(names)} {title}: {list_some(names, ', ')}" if names else ""
        return "\n".join([text, *self.left_out])


def load_weights_into(
    model: nn.Module,
    source: str | Path | Mapping[str, Any],
    *,
    complete: bool = False,
    other_classes: bool = False,
    batch_norm_epsilon: float = torchvision.BATCH_NORM_EPSILON,
) -> WeightsReport:
    """Fills a detector of this package with weights of this or another library.

    These weights load: detectors of this package and of maskrcnn-benchmark; Faster R-CNN, Mask
    R-CNN, Keypoint R-CNN and RetinaNet of detectron2; ``fasterrcnn_``, ``maskrcnn_``,
    ``keypointrcnn_`` and ``retinanet_resnet50_fpn`` of torchvision; and its ResNets and ResNeXts,
    which fill only the body. The state dict may be the whole file, or its entry ``model`` or
    ``state_dict``. The file is written by torch.save or, with NumPy arrays, is a pickle named
    ``.pkl``.

    torchvision's RetinaNet has a class 0 that no object belongs to. It is dropped if the model has
    one class less. detectron2's background is the last class and becomes the first. Anchors are
    loaded from the weights if they match those of the config.

    Args:
        model: from :func:`detops.modeling.build_detection_model`.
        source: a file, which is loaded without executing code; the contents of one; or a name that
            torchvision publishes, such as ``torchvision/fasterrcnn_resnet50_fpn``: see
            :func:`published_weights`.
        complete: reject weights that leave a tensor of the model unchanged, or that contain a
            tensor without a counterpart in the model.
        other_classes: skip predictors whose number of outputs differs from the model's, to train on
            other classes or keypoints than the weights were trained on.
        batch_norm_epsilon: epsilon that the frozen batch norms of a torchvision detector add to the
            variance. The file does not contain it. It is 0 in weights that torchvision publishes as
            COCO_V1, and 1e-5 in weights trained from an ImageNet network. If the file shows that
            the batch norms were not frozen, 1e-5 is used instead. Weights given by name have a
            known epsilon, which is used.

    Returns:
        A report of the tensors that were loaded and those that were not.

    Raises:
        CheckpointError: the file is missing or damaged; nothing in it belongs to the model; shapes
            differ (except for predictors with ``other_classes``); a detectron2 detector is loaded
            into a model of another ``MODEL.CONVENTION``; or, with ``complete``, tensors remain on
            either side. The model is then unchanged.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> report = load_weights_into(model, model.state_dict())
        >>> report.loaded == len(model.state_dict()), report.missing
        (True, ())
    """
    name = str(source) if isinstance(source, str | Path) else "state dict"
    if isinstance(source, str | Path) and torchvision.is_published(source):
        source, batch_norm_epsilon = torchvision.published_weights(name)
    state = _state_dict(source, name)
    expected = model.state_dict(keep_vars=True)
    from_detectron2 = detectron2.is_detectron2(state)
    if from_detectron2:
        _check_convention(model, state, name)
    rules = detectron2.RULES if from_detectron2 else torchvision.rules(state)
    found: State = {}
    unused = []
    for key, value in state.items():
        renamed = _rename(key, rules)
        targets = [] if renamed is None else _model_keys(renamed, expected)
        found |= dict.fromkeys(targets, value)
        unused += [key] if renamed is not None and not targets else []
    if not found:
        raise CheckpointError(
            f"{name}: no tensor belongs to the model; it has {list_some(list(state), ', ')}, "
            f"the model {list_some(list(expected), ', ')}"
        )
    if from_detectron2:
        detectron2.background_first(found, expected)
        batch_norm_epsilon = detectron2.BATCH_NORM_EPSILON
    _fold_epsilon(found, state, batch_norm_epsilon, from_detectron2)
    torchvision.drop_class_0(found, state, expected)
    unused += _convert_anchors(found, expected, model)
    left_out = _skip_predictors(found, expected) if other_classes else {}
    # A tensor may have two names, in a head that shares its layers.
    filled = {id(expected[target]) for target in found}
    missing = [
        key
        for key, value in expected.items()
        if id(value) not in filled and not key.startswith((ANCHORS, *left_out))
    ]
    problems = [
        f"{target} is {list(value.shape)}, the model's is {list(expected[target].shape)}"
        for target, value in found.items()
        if value.shape != expected[target].shape
    ]
    if complete:
        problems += list(left_out.values())
        problems += [f"lacks {key}" for key in missing] + [f"has unknown {key}" for key in unused]
    if problems:
        raise CheckpointError(f"{name}: does not fit the model: {list_some(problems)}")
    model.load_state_dict(found, strict=False)
    texts = tuple(f"{name}: {text}: skipped, trained from scratch" for text in left_out.values())
    return WeightsReport(name, len(found), tuple(unused), tuple(missing), texts)


def _state_dict(source: str | Path | Mapping[str, Any], name: str) -> State:
    if "://" in name:
        raise CheckpointError(f"{name}: expected a file; URLs are not supported")
    if isinstance(source, str | Path):
        content = read_pickle(source) if is_pickle(source) else read_file(source)
    else:
        content = source
    for key in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not content:
        raise CheckpointError(f"{name}: expected tensors by name, got {type(content).__name__}")
    # DistributedDataParallel and torch.compile add prefixes.
    return {
        re.sub(r"^(module\.|_orig_mod\.)+", "", str(key)): _tensor(key, value, name)
        for key, value in content.items()
    }


def _tensor(key: Any, value: Any, name: str) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        value = torch.tensor(value)
    if not isinstance(key, str) or not isinstance(value, Tensor):
        raise CheckpointError(
            f"{name}: expected tensors by name, got {type(value).__name__} at {shown(key)}"
        )
    return value


def _check_convention(model: nn.Module, state: State, name: str) -> None:
    """Rejects a detectron2 detector for a model of another convention.

    Its anchors are in another order, and its heads were trained on differently pooled features.
    """
    from ..modeling.convention import CONVENTIONS

    required = CONVENTIONS["detectron2"]
    if detectron2.is_detector(state) and getattr(model, "convention", required) is not required:
        raise CheckpointError(
            f"{name}: expected a model of MODEL.CONVENTION detectron2 for a detector of "
            "detectron2's; configs/detectron2_*.yaml have it"
        )


def _rename(key: str, rules: tuple[Rule, ...]) -> str | None:
    for pattern, replacement in rules:
        if re.match(pattern, key):
            return None if replacement is None else re.sub(f"^{pattern}", replacement, key)
    return key


def _model_keys(key: str, expected: Mapping[str, Tensor]) -> list[str]:
    """Returns the model's names for what maskrcnn-benchmark calls `key` in a plain body."""
    # A deformable convolution contains the plain one, next to its offsets.
    for name in (key, re.sub(r"\.conv2\.weight$", ".conv2.conv.weight", key)):
        if name in expected:
            return [name]
        # Without a pyramid, the last stage of the body belongs to the heads.
        stage = name.removeprefix("backbone.body.")
        targets = [target for target in expected if target.endswith(f".head.{stage}")]
        if targets and stage != name:
            return targets
    return []


def _fold_epsilon(found: State, state: State, epsilon: float, from_detectron2: bool) -> None:
    """Adds the epsilon of other libraries to the variance: our FrozenBatchNorm2d has none."""
    classifier, detector = "conv1.weight" in state, "backbone.body.conv1.weight" in state
    if not (classifier or detector or from_detectron2):
        return
    if classifier or any(key.endswith("num_batches_tracked") for key in state):
        epsilon = torchvision.BATCH_NORM_EPSILON
    for target in found:
        if target.endswith(".running_var"):
            # In half precision, adding epsilon would have no effect.
            found[target] = found[target].float() + epsilon


def _skip_predictors(found: State, expected: Mapping[str, Tensor]) -> dict[str, str]:
    """Removes predictors that differ only in the number of outputs; returns both shapes of each."""
    retinanet = any(target.startswith("rpn.head.cls_tower.") for target in expected)
    left_out = {}
    for layer in PREDICTORS + (RETINANET_PREDICTORS if retinanet else ()):
        # Transposed convolutions have their output channels in dimension 1.
        outputs = {f"{layer}.weight": 1 if layer.endswith("lowres") else 0, f"{layer}.bias": 0}
        shapes = {p: (found[p].shape, expected[p].shape) for p in outputs if p in found}
        differing = [target for target, (theirs, ours) in shapes.items() if theirs != ours]
        if differing and all(
            _drop_axis(theirs, outputs[target]) == _drop_axis(ours, outputs[target])
            for target, (theirs, ours) in shapes.items()
        ):
            theirs, ours = shapes[differing[0]]
            text = f"{differing[0]} is {list(theirs)}, the model's is {list(ours)}"
            left_out[f"{layer}."] = text
            for target in shapes:
                del found[target]
    return left_out


def _drop_axis(shape: Sequence[int], axis: int) -> list[int]:
    return [*shape[:axis], *shape[axis + 1 :]]


def _convert_anchors(found: State, expected: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Converts anchors to this package's convention; removes and returns those that do not match.

    Anchors of maskrcnn-benchmark are centred on a cell and include their last pixel.
    """
    mismatched = []
    for target in [target for target in found if target.startswith(ANCHORS)]:
        theirs, ours = found[target], expected[target]
        if theirs.shape == ours.shape:
            # mypy: an nn.Module's attributes may be anything.
            strides: Any = model.get_submodule("rpn.anchor_generator").strides
            stride = strides[int(target.removeprefix(ANCHORS))]
            if ((theirs[:, :2] + theirs[:, 2:]) - (stride - 1)).abs().max() < 1e-2:
                theirs = theirs + theirs.new_tensor([0, 0, 1, 1])
            found[target] = theirs
            ratio = (theirs[:, 2:] - theirs[:, :2]) / (ours[:, 2:] - ours[:, :2])
            if ((ratio - 1).abs() < ANCHOR_TOLERANCE).all():
                continue
        del found[target]
        mismatched.append(target)
    return mismatched
