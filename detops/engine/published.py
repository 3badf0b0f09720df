# SPDX-License-Identifier: MIT
"""torchvision's detectors with the weights that it publishes, on this package's ops."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..compat.torchvision import patch_torchvision
from .checkpoint import CheckpointError, list_some
from .weights_torchvision import PREFIX, cached_file, loading, newest_weights

# Of what works with this package's models alone.
NOT_OURS = "--weights: expected a detector of this package, got one of torchvision"
MASK_THRESHOLD = 0.5  # of torchvision's mask probabilities
METRICS = {"box": "box_map", "mask": "mask_map", "keypoints": "kp_map"}  # its names of COCO's AP


class OnTheseOps(nn.Module):
    """A detector of torchvision that runs on this package's ops, with masks of bool.

    Args:
        model: the detector; on a CPU it may be what `detops.optimize` made of it.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        """Detections in images ``[3, h, w]`` in 0..1."""
        with patch_torchvision():
            found = self.model(images)
        for each in found:
            if "masks" in each:
                each["masks"] = each["masks"] > MASK_THRESHOLD
        return found


class Published(NamedTuple):
    """A detector that torchvision publishes weights of.

    Attributes:
        name: what `--weights` takes.
        classes: how many.
        megabytes: size of the file.
        ap: COCO's AP of what it finds, box, and mask or keypoints, in percent, as torchvision
            states it.
        downloaded: whether the file is in torch hub's cache.
    """

    name: str
    classes: int
    megabytes: float
    ap: dict[str, float]
    downloaded: bool


def published_detectors() -> list[Published]:
    """All detectors that the installed torchvision has weights of, by name."""
    listed = []
    for name in _networks():
        weights = newest_weights(name)
        metrics = weights.meta["_metrics"]["COCO-val2017"]
        _, classes = class_names(weights)
        ap = {kind: metrics[key] for kind, key in METRICS.items() if key in metrics}
        listed.append(
            Published(
                PREFIX + name,
                len(classes),
                weights.meta["_file_size"],
                ap,
                cached_file(weights).exists(),
            )
        )
    return listed


def load_published(name: str) -> tuple[nn.Module, list[str]]:
    """A detector of torchvision, with its weights, on the CPU, and the names of its classes.

    torchvision downloads the weights, or takes them from the cache of torch hub.

    Args:
        name: as `published_detectors` lists it.

    Raises:
        CheckpointError: the name is none of these, or the weights can neither be found nor
            downloaded; the message says where they are sought.
    """
    from torchvision.models import get_model

    network = name.removeprefix(PREFIX)
    if network not in _networks():
        known = list_some([PREFIX + each for each in _networks()], ", ")
        raise CheckpointError(f"{name}: expected one of {known}; `detops weights` lists them")
    weights = newest_weights(network)
    with loading(name, weights):
        model = get_model(network, weights=weights)
    names, _ = class_names(weights)
    return model, names


def _networks() -> list[str]:
    from torchvision.models import detection, list_models

    return list_models(module=detection)


def class_names(weights: Any) -> tuple[list[str], list[str]]:
    """Names of classes: of labels 1, 2... as COCO's annotations have them, and of all there are.

    The annotations leave numbers out, whose name is "N/A".

    Args:
        weights: an entry of torchvision's enumerations.
    """
    # The first is no class but the background.
    names = weights.meta["categories"][1:]
    return names, [name for name in names if name != "N/A"]
