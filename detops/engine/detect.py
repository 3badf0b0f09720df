# SPDX-License-Identifier: MIT
"""Detection on images of any size with a trained model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..data.image import load_image
from ..data.tiling import cut_tiles, merge_detections
from ..device import choose_device
from ..export.load import SUFFIXES, load
from ..optimization import optimize
from .checkpoint import Checkpoint, CheckpointError, limit_parameters, load_checkpoint, load_weights
from .published import PatchedDetector, class_names, load_published
from .weights import load_weights_into
from .weights_torchvision import is_published, newest_weights

TILE_BATCH = 8
TILING = ("tile_size", "tile_overlap", "tile_nms")


class Detector:
    """A model with everything needed to detect objects: names, tiling, device.

    On a CPU, models of this package run as optimized by `detops.optimize`. They are optimized at
    the first image, and again whenever their weights have changed (except through ``.data``).

    Args:
        model: called with a list of images [3, h, w] in 0..1; returns a list of dicts with boxes
            [k, 4] xyxy in pixels, labels [k] and scores [k].
        names: category names of labels 1..C, in order.
        tile_size: side in pixels of the tiles that images are cut into; 0 disables tiling.
        tile_overlap: fraction of a tile that overlaps with the next.
        tile_nms: IoU above which detections of different tiles are duplicates.
        device: device to run on, see `choose_device`.

    Example:
        >>> from detops.cli.options import TREE_CROWNS
        >>> detector = Detector.from_checkpoint(TREE_CROWNS / "weights.pt", device="cpu")
        >>> found = detector.detect(torch.zeros(3, 200, 300), score_threshold=0.5)
        >>> [*found]
        ['boxes', 'labels', 'scores', 'names']
    """

    def __init__(
        self,
        model: nn.Module,
        names: Sequence[str],
        tile_size: int = 0,
        tile_overlap: float = 0.25,
        tile_nms: float = 0.5,
        device: str | torch.device | None = None,
    ) -> None:
        self.device = choose_device(device)
        self.model = to_device(model, self.device).eval()
        self.names = tuple(names)
        self._optimized: nn.Module | None = None
        self._optimized_state: list[
            tuple[int, int]
        ] = []  # state of the model from which `_optimized` was built
        self.tile_size, self.tile_overlap, self.tile_nms = tile_size, tile_overlap, tile_nms

    @classmethod
    def from_config(
        cls,
        model: nn.Module,
        names: Sequence[str],
        cfg: Any,
        device: str | torch.device | None = None,
    ) -> Detector:
        """Creates a detector tiled by INPUT.TILE_SIZE, INPUT.TILE_OVERLAP and TEST.TILE_NMS."""
        tiling = (cfg.INPUT.TILE_SIZE, cfg.INPUT.TILE_OVERLAP, cfg.TEST.TILE_NMS)
        return cls(model, names, *tiling, device=device)

    @classmethod
    def from_checkpoint(
        cls, path: str | Path, device: str | torch.device | None = None
    ) -> Detector:
        """Loads a detector from a checkpoint file alone.

        Raises:
            CheckpointError: the file is missing, damaged, or does not fit the model of its config.
        """
        return cls.from_loaded(load_checkpoint(path), path, device)

    @classmethod
    def from_exported(cls, path: str | Path, device: str | torch.device | None = None) -> Detector:
        """Loads a detector from a file written by `detops export`; it runs on the CPU.

        Raises:
            ValueError: the file is damaged or has no class names, or another device is requested.
        """
        if choose_device("cpu" if device is None else device).type != "cpu":
            raise ValueError(f"{path}: an exported detector runs on the CPU, got {device}")
        model = load(path)
        if "names" not in model.about:
            raise ValueError(f"{path}: has no names of classes; `detops export` writes them")
        tiling = {key: float(model.about[key]) for key in TILING if key in model.about}
        size = int(tiling.pop("tile_size", 0))
        return cls(model, model.about["names"].split("\n"), size, **tiling, device="cpu")

    @property
    def about(self) -> dict[str, str]:
        """Strings that `from_exported` needs in addition to the model."""
        tiling = {key: str(getattr(self, key)) for key in TILING}
        return {"names": "\n".join(self.names)} | tiling

    @classmethod
    def from_loaded(
        cls,
        checkpoint: Checkpoint,
        path: str | Path = "checkpoint",
        device: str | torch.device | None = None,
    ) -> Detector:
        """Creates a detector from the result of `load_checkpoint`; the path is for messages."""
        from ..config import ConfigError, load_config
        from ..modeling import build_detection_model

        # Parse with load_config, so that keys added to the config since then get their defaults. It
        # reads only files, hence the temporary one.
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "config.yaml"
            file.write_text(checkpoint["config"], encoding="utf-8")
            try:
                cfg = load_config(file)
            except ConfigError as error:
                reason = str(error).removeprefix(f"{file}:").strip()
                raise CheckpointError(f"{path}: its config: {reason}") from error
        with limit_parameters(checkpoint["model"], path):
            model = build_detection_model(cfg)
        load_weights(model, checkpoint["model"], path)
        return cls.from_config(model, checkpoint["names"], cfg, device)

    @classmethod
    def from_weights(
        cls, path: str | Path, cfg: Any, device: str | torch.device | None = None
    ) -> Detector:
        """Creates a detector from a config and weights of any kind that `load_weights_into` reads.

        The category names are those of `default_names`.

        Raises:
            CheckpointError: the file is missing or damaged, or does not contain this whole network.
        """
        from ..modeling import build_detection_model

        model = build_detection_model(cfg)
        epsilon = cfg.MODEL.WEIGHT_BN_EPSILON
        load_weights_into(model, path, complete=True, batch_norm_epsilon=epsilon)
        return cls.from_config(model, default_names(cfg), cfg, device)

    @classmethod
    def from_published(cls, name: str, device: str | torch.device | None = None) -> Detector:
        """Loads a torchvision detector with its published weights and class names.

        It runs on this package's ops, and on a CPU as optimized by `detops.optimize`.

        Args:
            name: ``torchvision/`` followed by torchvision's name of the network, such as
                ``torchvision/maskrcnn_resnet50_fpn_v2``.
            device: device to run on, see `choose_device`.

        Raises:
            CheckpointError: there is no such detector, or its weights are not available.
        """
        torch_device = choose_device(device)
        model, names = load_published(name)
        if torch_device.type == "cpu":
            model = optimize(to_device(model, torch_device))
        return cls(PatchedDetector(model), names, device=torch_device)

    @torch.inference_mode()
    def detect(
        self,
        image: str | Path | Image.Image | np.ndarray | Tensor,
        score_threshold: float = 0.0,
    ) -> dict[str, Any]:
        """Detects objects in one image.

        Args:
            image: a path, PIL image, array [H, W, 3] or tensor [3, H, W]; see `load_image`.
            score_threshold: detections below it are dropped.

        Returns:
            boxes float32 [K, 4] xyxy in pixels of the image, labels int64 [K] and scores float32
            [K], by descending score, on the CPU; names, a list of K category names; and any other
            output of the model: masks bool [K, 1, H, W], keypoints [K, n, 3], keypoints_scores [K,
            n].

        Raises:
            ImageError: the image cannot be read.
            ValueError: the model returns a label that has no name.
        """
        return self.detect_batch([image], score_threshold)[0]

    @torch.inference_mode()
    def detect_batch(
        self,
        images: Sequence[str | Path | Image.Image | np.ndarray | Tensor],
        score_threshold: float = 0.0,
    ) -> list[dict[str, Any]]:
        """Detects objects in several images, running images of the same size together.

        Each image gets the same detections as it would alone, because images are never padded to a
        common size. Tiled images run one at a time, with their tiles batched.

        Args:
            images: as in `detect`.
            score_threshold: detections below it are dropped.

        Returns:
            The result of `detect` for each image.

        Raises:
            ImageError: an image cannot be read.
            ValueError: the model returns a label that has no name.
        """
        pixels = [load_image(image) for image in images]
        found: dict[int, dict[str, Tensor]] = {}
        if self.tile_size > 0:
            found = {i: self._detect_tiled(each) for i, each in enumerate(pixels)}
        else:
            by_size: dict[Any, list[int]] = {}
            for i, each in enumerate(pixels):
                by_size.setdefault(each.shape, []).append(i)
            for group in by_size.values():
                detections = self._inference_model([self._to_floats(pixels[i]) for i in group])
                found |= zip(group, detections, strict=True)
        return [self._result(found[i], score_threshold) for i in range(len(pixels))]

    def _result(self, found: dict[str, Tensor], score_threshold: float) -> dict[str, Any]:
        keep = found["scores"] >= score_threshold
        result: dict[str, Any] = {key: value[keep].cpu() for key, value in found.items()}
        labels = result["labels"].tolist()
        for label in labels:
            # Labels below 1, from a model that counts from 0, would index the list from its end.
            if not 1 <= label <= len(self.names):
                raise ValueError(
                    f"Detector: expected labels in 1..{len(self.names)}, one per name, got {label}"
                )
        return result | {"names": [self.names[label - 1] for label in labels]}

    @property
    def _inference_model(self) -> nn.Module:
        from ..modeling import GeneralizedRCNN

        if self.device.type != "cpu" or not isinstance(self.model, GeneralizedRCNN):
            return self.model
        state = _tensor_versions(self.model)
        if self._optimized is None or self._optimized_state != state:
            self._optimized, self._optimized_state = optimize(self.model), state
        return self._optimized

    def inputs(self, pixels: Tensor) -> Iterator[Tensor]:
        """Yields the model inputs for an image ``[3, h, w]`` uint8: it or its tiles, as floats."""
        if self.tile_size > 0:
            yield from (self._cut(pixels, tile) for tile in self._tiles(pixels))
        else:
            yield self._to_floats(pixels)

    def _tiles(self, pixels: Tensor) -> list[tuple[int, int, int, int]]:
        return cut_tiles(pixels.size(1), pixels.size(2), self.tile_size, self.tile_overlap)

    def _detect_tiled(self, pixels: Tensor) -> dict[str, Tensor]:
        height, width = pixels.shape[1:]
        tiles = self._tiles(pixels)
        found: list[dict[str, Tensor]] = []
        for start in range(0, len(tiles), TILE_BATCH):
            group = tiles[start : start + TILE_BATCH]
            found += self._inference_model([self._cut(pixels, tile) for tile in group])
        return merge_detections(found, tiles, (height, width), self.tile_nms)

    def _cut(self, pixels: Tensor, tile: tuple[int, int, int, int]) -> Tensor:
        x1, y1, x2, y2 = tile
        # Convert one tile at a time: a whole image as floats may exceed the memory.
        cut = self._to_floats(pixels[:, y1:y2, x1:x2])
        if cut.shape[1:] == (self.tile_size, self.tile_size):
            return cut
        # The model resizes its input to a fixed side. Padding an image smaller than a tile to a
        # full tile keeps the scale that tiles had in training.
        padded = cut.mean(dim=(1, 2), keepdim=True).repeat(1, self.tile_size, self.tile_size)
        padded[:, : y2 - y1, : x2 - x1] = cut
        return padded

    def _to_floats(self, pixels: Tensor) -> Tensor:
        return pixels.to(self.device).float().div_(255)


def _tensor_versions(model: nn.Module) -> list[tuple[int, int]]:
    """Returns the address and version of each tensor; inference tensors have no version."""
    tensors = chain(model.parameters(), model.buffers())
    return [(t.data_ptr(), -1 if t.is_inference() else t._version) for t in tensors]


def open_detector(
    path: str | Path, cfg: Any = None, device: str | torch.device | None = None
) -> Detector:
    """Opens a detector from any supported file or name.

    Args:
        path: a checkpoint; with ``cfg``, weights of any kind; a file written by `detops export`; or
            the name of a published torchvision detector, such as
            ``torchvision/maskrcnn_resnet50_fpn_v2``.
        cfg: config of the network, for weights of other packages.
        device: device to run on; exported detectors require the CPU.

    Raises:
        CheckpointError, ValueError: see `Detector`.
    """
    if cfg is None and is_published(path):
        return Detector.from_published(str(path), device)
    if cfg is not None:
        return Detector.from_weights(path, cfg, device)
    if Path(path).suffix in SUFFIXES:
        return Detector.from_exported(path, device)
    return Detector.from_checkpoint(path, device)


def default_names(cfg: Any) -> list[str]:
    """Returns names for labels 1, 2...: COCO's if their number matches, otherwise numbers."""
    from ..modeling.build import num_classes

    _, count = num_classes(cfg)
    for names in class_names(newest_weights("fasterrcnn_resnet50_fpn")):
        if len(names) == count - 1:
            return names
    return [str(label) for label in range(1, count)]


def to_device(model: nn.Module, device: torch.device) -> nn.Module:
    """Moves a model to a device, with channels-last weights for faster convolutions."""
    # mypy: this overload of Module.to is missing from torch's annotations.
    return model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
