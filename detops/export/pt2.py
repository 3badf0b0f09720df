# SPDX-License-Identifier: MIT
"""Detectors for PyTorch alone: as a graph, and compiled, which needs no Python."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from .program import program

# Inductor takes the result of a convolution for contiguous where the batch is a size that values
# decide, and oneDNN gives channels last: heads after RoIAlign would read their features transposed.
# With the sizes' own order, both are contiguous.
CONFIG = {"layout_optimization": False}


def pt2(
    detector: nn.Module,
    file: str | Path,
    size: tuple[int, int] | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Writes a detector as a graph of PyTorch, with its weights.

    :func:`detops.export.load` reads it, and so does ``torch.export.load`` where detops is imported.

    Args:
        detector: in eval mode; it runs on the device where it is now.
        file: where to, a name that ends in ``.pt2``.
        size: (height, width) of the only images that it will take; None: any.
        about: texts by name that are kept in the file.

    Raises:
        ValueError: the detector is in training mode, or the file has another ending.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> detops.export.pt2(model.eval(), "detector.pt2")  # doctest: +SKIP
        >>> found = detops.export.load("detector.pt2")(images)  # doctest: +SKIP
    """
    _check(file, "pt2")
    graph = program(detector, size)
    with warnings.catch_warnings():
        # Weights in channels last are whole.
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(graph, str(file), extra_files=dict(about or {}))


def aoti(
    detector: nn.Module,
    file: str | Path,
    size: tuple[int, int] | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Compiles a detector to machine code with AOTInductor, and writes that and its weights.

    :func:`detops.export.load` reads it; a C++ program that links ``detops::detops`` runs it with
    PyTorch's ``AOTIModelPackageLoader``, without Python. It runs with the PyTorch that wrote it, on
    processors with the same vector instructions.

    Args:
        detector: in eval mode; it runs on the device where it is now.
        file: where to, a name that ends in ``.pt2``.
        size: (height, width) of the only images that it will take; None: any.
        about: texts by name that are kept in the file.

    Raises:
        ValueError: the detector is in training mode, or the file has another ending.
        RuntimeError: there is no C++ compiler.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> detops.export.aoti(model.eval(), "detector.pt2")  # doctest: +SKIP
        >>> found = detops.export.load("detector.pt2")(images)  # doctest: +SKIP
    """
    _check(file, "aoti")
    config = CONFIG | {"aot_inductor.metadata": dict(about or {})}
    # mypy: torch._inductor has no annotations of what it imports lazily.
    torch._inductor.aoti_compile_and_package(
        program(detector, size), package_path=str(file), inductor_configs=config
    )


def _check(file: str | Path, function: str) -> None:
    if Path(file).suffix != ".pt2":
        raise ValueError(f"detops.export.{function}: file must end in .pt2, got {file}")
