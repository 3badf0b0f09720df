# SPDX-License-Identifier: MIT
"""torchvision detectors with their published weights, on this package's ops."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

from ..compat.torchvision import patch_torchvision
from .checkpoint import CheckpointError, list_some
from .weights_torchvision import PREFIX, cached_file, loading, newest_weights

# Error message of commands that support only this package's models.
TORCHVISION_UNSUPPORTED = "--weights: expected a detector of this package, got one of torchvision"
MASK_THRESHOLD = 0.5  # on torchvision's mask probabilities
METRICS = {"box": "box_map", "mask": "mask_map", "keypoints": "kp_map"}  # torchvision's names of AP


class PatchedDetector(nn.Module):
    """A torchvision detector that runs on this package's ops and returns bool masks.

    Args:
        model: the detector; on a CPU it may be optimized by `detops.optimize`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        """Detects objects in images ``[3, h, w]`` in 0..1."""
        with patch_torchvision():
            found = self.model(images)
        for each in found:
            if "masks" in each:
                each["masks"] = each["masks"] > MASK_THRESHOLD
        return found


class Published(NamedTuple):
    """A detector with weights published by torchvision.

    Attributes:
        name: the value of `--weights`.
        classes: number of classes.
        megabytes: size of the file.
        ap: COCO AP in percent, as stated by torchvision, by kind: box, and mask or keypoints.
        downloaded: whether the file is in the torch hub cache.
    """

    name: str
    classes: int
    megabytes: float
    ap: dict[str, float]
    downloaded: bool


def published_detectors() -> list[Published]:
    """Lists the detectors that the installed torchvision has weights for, by name."""
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
    """Loads a torchvision detector on the CPU, with its weights and its class names.

    torchvision downloads the weights, or reads them from the torch hub cache.

    Args:
        name: a name listed by `published_detectors`.

    Raises:
        CheckpointError: the name is unknown, or the weights are neither cached nor downloadable;
            the message contains the expected path.
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
    """Returns the class names of labels 1, 2... as numbered by COCO, and the same without gaps.

    COCO's annotations skip some numbers; torchvision names these "N/A".

    Args:
        weights: an entry of a torchvision weights enumeration.
    """
    # The first entry is the background.
    names = weights.meta["categories"][1:]
    return names, [name for name in names if name != "N/A"]
