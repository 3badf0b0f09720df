# SPDX-License-Identifier: MIT
"""A detector as one PyTorch graph, for an image of any size."""

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

LEADING_KEYS = ("boxes", "labels", "scores")


class SingleImageDetector(nn.Module):
    """A detector that accepts one image instead of a list, and returns tensors in a fixed order."""

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector = detector

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        """Maps ``[3, h, w]`` to the detections of that image: boxes, labels, scores, the rest."""
        (detections,) = self.detector([image])
        return {key: detections[key] for key in LEADING_KEYS if key in detections} | detections


def program(detector: nn.Module, size: tuple[int, int] | None = None) -> ExportedProgram:
    """Traces the inference graph of a detector, from an image ``[3, h, w]`` to its detections.

    Args:
        detector: in eval mode; maps a list of images to a list of dicts.
        size: (height, width) of the only images that the graph accepts; None for any size.

    Returns:
        The result of ``torch.export.export``; its outputs are a dict.

    Raises:
        ValueError: the detector is in training mode.

    Example:
        >>> class Brightness(torch.nn.Conv2d):
        ...     def forward(self, images):
        ...         scores = super(Brightness, self).forward
        ...         return [{"scores": scores(x).mean((1, 2))} for x in images]
        >>> exported = detops.export.program(Brightness(3, 1, 1).eval())
        >>> [*exported.module()(torch.ones(3, 100, 120))]
        ['scores']
    """
    if detector.training:
        raise ValueError("detops.export: the detector must be in eval mode, call eval() on it")
    height, width = size or (160, 224)
    parameter = next(detector.parameters())
    image = torch.rand(3, height, width, device=parameter.device, dtype=parameter.dtype)
    sides = {} if size else {1: Dim.DYNAMIC, 2: Dim.DYNAMIC}
    with torch.no_grad():
        return torch.export.export(SingleImageDetector(detector), (image,), dynamic_shapes=(sides,))
