# SPDX-License-Identifier: MIT
"""Loading of exported detectors."""

import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..module import Module

Run = Callable[[Tensor], dict[str, Tensor]]
SUFFIXES = (".pt2", ".onnx")


class Exported(Module):
    """A detector from a file.

    Args:
        run: maps one image ``[3, h, w]`` to its detections.
        about: the texts stored in the file.
    """

    def __init__(self, run: Run, about: dict[str, str]) -> None:
        super().__init__()
        # In a tuple: as a submodule, a graph would raise on eval() and to().
        self._run = (run,)
        self.about = about

    def forward(self, images: Sequence[Tensor]) -> list[dict[str, Tensor]]:
        """Maps images ``[3, h, w]``, RGB in 0..1, to a dict of detections each.

        Raises:
            RuntimeError: the graph rejects an image, for instance its size, or fails on it.
        """
        return [self._detect(image) for image in images]

    def _detect(self, image: Tensor) -> dict[str, Tensor]:
        try:
            return self._run[0](image)
        except (MemoryError, RuntimeError):
            raise
        # Guards of a graph raise AssertionError. ONNX Runtime's errors have no common base class.
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            if isinstance(error, AssertionError):
                reason = "its graph does not support this size"  # the guard itself is a formula
            raise RuntimeError(
                f"the exported detector rejects an image of shape {list(image.shape)}: {reason}"
            ) from error


def load(file: str | Path) -> Exported:
    """Loads a detector from a file of :func:`pt2`, :func:`aoti` or :func:`onnx`.

    It is called like the original detector, with a list of images, and returns a list of dicts. An
    ONNX file runs on the CPU in ONNX Runtime.

    Args:
        file: path that ends in ``.pt2`` or ``.onnx``.

    Returns:
        An ``nn.Module``. Its attribute ``about`` holds the texts stored in the file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: the file has another ending, or is damaged.
        ModuleNotFoundError: onnxruntime is not installed.

    Example:
        >>> detops.export.load("detector.pt2")([image])[0]["boxes"]  # doctest: +SKIP
    """
    path = Path(file)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"detops.export.load: file must end in .pt2 or .onnx, got {path}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".onnx":
        return _load_onnx(path)
    try:
        return _load_pt2(path)
    # The type depends on the code that first fails on a damaged file.
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(
            f"{path}: damaged, or not written by detops.export for this PyTorch ({reason})"
        ) from error


def _load_pt2(path: Path) -> Exported:
    with zipfile.ZipFile(path) as archive:
        compiled = any("/aotinductor/" in name for name in archive.namelist())
    if compiled:
        package = torch._inductor.aoti_load_package(str(path))
        return Exported(package, package.get_metadata())
    about = {"names": ""}  # PyTorch adds all extra files, but only if the dict is not empty
    graph = torch.export.load(str(path), extra_files=about).module()
    return Exported(graph, {key: text for key, text in about.items() if text})


def onnxruntime() -> Any:
    """Imports ONNX Runtime, with its telemetry off unless the user has set it.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # read at import
    import onnxruntime

    return onnxruntime


def _load_onnx(path: Path) -> Exported:
    runtime = onnxruntime()
    try:
        session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    # ONNX Runtime's errors have no common base class.
    except Exception as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from error
    (image,) = (node.name for node in session.get_inputs())
    names = [node.name for node in session.get_outputs()]

    def run(pixels: Tensor) -> dict[str, Tensor]:
        outputs: list[Any] = session.run(None, {image: np.ascontiguousarray(pixels.detach().cpu())})
        return dict(zip(names, map(torch.from_numpy, outputs), strict=True))

    return Exported(run, dict(session.get_modelmeta().custom_metadata_map))
