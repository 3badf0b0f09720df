"""Detectors made fast on a CPU: :func:`optimize`."""

import copy
import threading
from contextlib import ExitStack
from typing import Any, TypeVar

import torch
from torch import nn

from .. import _C

Model = TypeVar("Model", bound=nn.Module)


def optimize(model: Model, *, exact: bool = False) -> Model:
    """A detector for inference on the CPU, with the same call and the same detections.

    ::

        detector = detops.optimize(torchvision.models.detection.maskrcnn_resnet50_fpn(...))
        detections = detector(images)

    Normalisations are folded into convolutions, sums and rectifiers happen before their results are
    written, weights are arranged once for the products that use them, 3x3 convolutions take
    Winograd's algorithm (:func:`winograd_conv2d`), maps are in channels_last, and what one image
    has left in memory serves the next: the package's own ops, and those of torchvision's models,
    take large results from memory that stays, at most the most that was in use at a time.
    :func:`release_memory` gives it back.

    With Winograd's algorithm boxes move by less than 0.05 pixels, and scores by less than 1e-4,
    where a detector has been trained; with ``exact`` every sum is one of products, as before.

    The model that is given stays as it is. The copy shares those of its tensors that are not
    arranged anew; its weights are those of the time of the call, and it is not for training.

    Args:
        model: a detector of this package or of torchvision, in float32 on the CPU.
        exact: the strictest arithmetic.

    Raises:
        TypeError: another model.
        ValueError: it is not on the CPU.

    Example:
        >>> cfg = detops.config.load_config(None, ["INPUT.MIN_SIZE_TEST", 64])
        >>> detector = detops.optimize(detops.modeling.build_detection_model(cfg))
        >>> [*detector([torch.rand(3, 48, 64)])[0]]
        ['boxes', 'labels', 'scores']
    """
    from ..modeling import GeneralizedRCNN

    own = isinstance(model, GeneralizedRCNN)
    theirs = type(model).__module__.startswith("torchvision.models.detection.")
    if not own and not theirs:
        raise TypeError(
            "detops.optimize: model must be a detector of detops or of torchvision, got "
            f"{type(model).__module__}.{type(model).__qualname__}"
        )
    tensors = [*model.parameters(), *model.buffers()]
    devices = {str(t.device) for t in tensors if t.device.type != "cpu"}
    if devices:
        raise ValueError(f"detops.optimize: model must be on the CPU, got {', '.join(devices)}")
    fast = copy.deepcopy(model, {id(t): t for t in tensors}).eval()
    with torch.no_grad():
        if own:
            from .of_detops import pack
        else:
            from .of_torchvision import pack
        pack(fast, exact)
    fast.register_forward_pre_hook(_own_begins if own else _theirs_begins)
    fast.register_forward_hook(_ends, always_call=True)
    return fast


def release_memory() -> None:
    """Gives memory that is kept for the next image, or training step, back to the system.

    Example:
        >>> detops.release_memory()
    """
    _C.release_arena()


# What calls that are under way in a thread have changed, and must put back.
_CALLS = threading.local()


def _own_begins(model: nn.Module, *_: Any, patched: bool = False) -> None:
    call = ExitStack()
    before = _C.use_arena(True)
    call.callback(_C.use_arena, before)
    if patched:
        from ..compat.torchvision import patch_torchvision

        call.enter_context(patch_torchvision())
    _CALLS.__dict__.setdefault("stack", []).append(call)
    if model.training:  # _ends is called all the same
        raise RuntimeError(
            "detops.optimize: the detector is for inference, got one in training: call eval() on "
            "it, or train the model that it was made of"
        )


def _theirs_begins(model: nn.Module, *_: Any) -> None:
    _own_begins(model, patched=True)


def _ends(*_: Any) -> None:
    _CALLS.stack.pop().close()
