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
# The layers whose number of outputs is that of the classes, or of the keypoints.
PREDICTORS = (
    "roi_heads.box.predictor.cls_score",
    "roi_heads.box.predictor.bbox_pred",
    "roi_heads.mask.predictor.mask_fcn_logits",
    "roi_heads.keypoint.predictor.kps_score_lowres",
)
RETINANET_PREDICTORS = ("rpn.head.cls_logits",)
# Two libraries round the sides of one anchor differently, by up to a tenth where it is small.
SAME_SIDE = 0.2

State = dict[str, Tensor]


class WeightsReport(NamedTuple):
    """What became of the tensors of a file and of a model.

    Args:
        source: the file.
        loaded: number of the model's tensors that were filled.
        unused: the file's tensors that have no place in the model.
        missing: the model's tensors that the file has nothing for; they stay as they were.
        left_out: the model's predictors of other classes than the file's, each with both shapes;
            they stay as they were, too.

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
        """A line, and one for each predictor that was left out."""
        text = f"{self.source}: {self.loaded} tensors loaded"
        for title, names in (("not used", self.unused), ("not in it", self.missing)):
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

    Read are detectors of this package and of maskrcnn-benchmark, detectron2's Faster R-CNN, Mask
    R-CNN, Keypoint R-CNN and RetinaNet, torchvision's ``fasterrcnn_``, ``maskrcnn_``,
    ``keypointrcnn_`` and ``retinanet_resnet50_fpn``, and its ResNets and ResNeXts, which fill the
    body alone. Their state dict may stand alone, or as ``model`` or ``state_dict`` beside other
    things, in a file of torch.save's or, of numpy arrays, in a pickle named ``.pkl``.

    torchvision's RetinaNet has a class 0 that no object is of: it is left out where the model has
    one class less. detectron2's background is the last class, and becomes the first. Anchors are
    taken from the weights, as far as they are those of the config.

    Args:
        model: from :func:`detops.modeling.build_detection_model`.
        source: a file, of which no code is run, or what is in one; or what torchvision publishes,
            as ``torchvision/fasterrcnn_resnet50_fpn``: see :func:`published_weights`.
        complete: refuse weights that leave anything of the model as it was, or have no place.
        other_classes: leave out predictors whose number of outputs is not the model's, to train
            on other classes, or with other keypoints, than the weights were trained on.
        batch_norm_epsilon: what the frozen batch norms of a torchvision detector add to the
            variance. Its file does not tell: 0 in what torchvision publishes as COCO_V1, 1e-5 in
            what is trained from an ImageNet network. Where the file shows that they were not
            frozen it is 1e-5, whatever is given here. For weights that are given by their name it
            is known.

    Returns:
        What was loaded and what was not.

    Raises:
        CheckpointError: the file is missing or damaged, nothing in it belongs to the model, shapes
            differ (but for predictors with ``other_classes``), a detector of detectron2's is for a
            model of another ``MODEL.CONVENTION``, or with ``complete`` something is left over on
            either side. The model is then as it was.

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
        ours = _rename(key, rules)
        places = [] if ours is None else _places(ours, expected)
        found |= dict.fromkeys(places, value)
        unused += [key] if ours is not None and not places else []
    if not found:
        raise CheckpointError(
            f"{name}: nothing in it belongs to the model; it has {list_some(list(state), ', ')}, "
            f"the model {list_some(list(expected), ', ')}"
        )
    if from_detectron2:
        detectron2.background_first(found, expected)
        batch_norm_epsilon = detectron2.BATCH_NORM_EPSILON
    _fold_epsilon(found, state, batch_norm_epsilon, from_detectron2)
    torchvision.drop_class_0(found, state, expected)
    unused += _fit_anchors(found, expected, model)
    left_out = _leave_out_predictors(found, expected) if other_classes else {}
    # One tensor may have two names, in a head that shares its layers.
    filled = {id(expected[place]) for place in found}
    missing = [
        key
        for key, value in expected.items()
        if id(value) not in filled and not key.startswith((ANCHORS, *left_out))
    ]
    problems = [
        f"{place} is {list(value.shape)}, the model's is {list(expected[place].shape)}"
        for place, value in found.items()
        if value.shape != expected[place].shape
    ]
    if complete:
        problems += list(left_out.values())
        problems += [f"lacks {key}" for key in missing] + [f"has unknown {key}" for key in unused]
    if problems:
        raise CheckpointError(f"{name}: does not fit the model: {list_some(problems)}")
    model.load_state_dict(found, strict=False)
    texts = tuple(f"{name}: {text}: left out, trained anew" for text in left_out.values())
    return WeightsReport(name, len(found), tuple(unused), tuple(missing), texts)


def _state_dict(source: str | Path | Mapping[str, Any], name: str) -> State:
    if "://" in name:
        raise CheckpointError(f"{name}: expected a file; catalogues and addresses are not read")
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
    # DistributedDataParallel and torch.compile put prefixes in front.
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
    """Its anchors come in another order, and its heads have never seen what is pooled here."""
    from ..modeling.convention import CONVENTIONS

    wanted = CONVENTIONS["detectron2"]
    if detectron2.is_detector(state) and getattr(model, "convention", wanted) is not wanted:
        raise CheckpointError(
            f"{name}: expected a model of MODEL.CONVENTION detectron2 for a detector of "
            "detectron2's; configs/detectron2_*.yaml have it"
        )


def _rename(key: str, rules: tuple[Rule, ...]) -> str | None:
    for pattern, replacement in rules:
        if re.match(pattern, key):
            return None if replacement is None else re.sub(f"^{pattern}", replacement, key)
    return key


def _places(key: str, expected: Mapping[str, Tensor]) -> list[str]:
    """The model's names for what the family calls `key` in a plain body."""
    # A deformable convolution holds the plain one, and offsets beside it.
    for name in (key, re.sub(r"\.conv2\.weight$", ".conv2.conv.weight", key)):
        if name in expected:
            return [name]
        # Without a pyramid, the last stage of the body belongs to the heads.
        stage = name.removeprefix("backbone.body.")
        places = [place for place in expected if place.endswith(f".head.{stage}")]
        if places and stage != name:
            return places
    return []


def _fold_epsilon(found: State, state: State, epsilon: float, from_detectron2: bool) -> None:
    """Our FrozenBatchNorm2d has no epsilon: that of others goes into the variance."""
    classifier, detector = "conv1.weight" in state, "backbone.body.conv1.weight" in state
    if not (classifier or detector or from_detectron2):
        return
    if classifier or any(key.endswith("num_batches_tracked") for key in state):
        epsilon = torchvision.BATCH_NORM_EPSILON
    for place in found:
        if place.endswith(".running_var"):
            # In half precision the sum would be what it was.
            found[place] = found[place].float() + epsilon


def _leave_out_predictors(found: State, expected: Mapping[str, Tensor]) -> dict[str, str]:
    """Takes out the predictors that differ in the number of outputs alone; what they were, each."""
    retinanet = any(place.startswith("rpn.head.cls_tower.") for place in expected)
    left_out = {}
    for layer in PREDICTORS + (RETINANET_PREDICTORS if retinanet else ()):
        # A transposed convolution has its outputs second.
        outputs = {f"{layer}.weight": 1 if layer.endswith("lowres") else 0, f"{layer}.bias": 0}
        shapes = {p: (found[p].shape, expected[p].shape) for p in outputs if p in found}
        differing = [place for place, (theirs, ours) in shapes.items() if theirs != ours]
        if differing and all(
            _without(theirs, outputs[place]) == _without(ours, outputs[place])
            for place, (theirs, ours) in shapes.items()
        ):
            theirs, ours = shapes[differing[0]]
            text = f"{differing[0]} is {list(theirs)}, the model's is {list(ours)}"
            left_out[f"{layer}."] = text
            for place in shapes:
                del found[place]
    return left_out


def _without(shape: Sequence[int], axis: int) -> list[int]:
    return [*shape[:axis], *shape[axis + 1 :]]


def _fit_anchors(found: State, expected: Mapping[str, Tensor], model: nn.Module) -> list[str]:
    """Anchors in this package's convention; takes out and returns those that are not the model's.

    maskrcnn-benchmark's lie about the middle of a cell, and their last pixel is inside.
    """
    others = []
    for place in [place for place in found if place.startswith(ANCHORS)]:
        theirs, ours = found[place], expected[place]
        if theirs.shape == ours.shape:
            # mypy: an nn.Module's attributes may be anything.
            strides: Any = model.get_submodule("rpn.anchor_generator").strides
            stride = strides[int(place.removeprefix(ANCHORS))]
            if ((theirs[:, :2] + theirs[:, 2:]) - (stride - 1)).abs().max() < 1e-2:
                theirs = theirs + theirs.new_tensor([0, 0, 1, 1])
            found[place] = theirs
            ratio = (theirs[:, 2:] - theirs[:, :2]) / (ours[:, 2:] - ours[:, :2])
            if ((ratio - 1).abs() < SAME_SIDE).all():
                continue
        del found[place]
        others.append(place)
    return others
