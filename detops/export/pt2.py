# SPDX-License-Identifier: MIT
"""Export to PyTorch, as a graph or as compiled code that runs without Python."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from .program import program

# If the batch size depends on values, Inductor assumes that convolutions return contiguous tensors,
# but oneDNN returns channels_last: heads after RoIAlign would read their features transposed.
# Without layout optimization, both are contiguous.
CONFIG = {"layout_optimization": False}


def pt2(
    detector: nn.Module,
    file: str | Path,
    size: tuple[int, int] | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Exports a detector to a PyTorch graph with its weights.

    :func:`detops.export.load` loads the file, and so does ``torch.export.load`` if detops is
    imported.

    Args:
        detector: in eval mode; the graph runs on the current device of the detector.
        file: path of the file to write, ending in ``.pt2``.
        size: (height, width) of the only images that the graph accepts; None for any size.
        about: texts by name, stored in the file.

    Raises:
        ValueError: the detector is in training mode, or the file does not end in ``.pt2``.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> detops.export.pt2(model.eval(), "detector.pt2")  # doctest: +SKIP
        >>> found = detops.export.load("detector.pt2")(images)  # doctest: +SKIP
    """
    _check(file, "pt2")
    graph = program(detector, size)
    with warnings.catch_warnings():
        # Wrong for weights in channels_last, which are complete.
        warnings.filterwarnings("ignore", "No complete tensor found")
        torch.export.save(graph, str(file), extra_files=dict(about or {}))


def aoti(
    detector: nn.Module,
    file: str | Path,
    size: tuple[int, int] | None = None,
    about: Mapping[str, str] | None = None,
) -> None:
    """Compiles a detector to machine code with AOTInductor, and writes it with its weights.

    :func:`detops.export.load` loads the file. A C++ program that links ``detops::detops`` runs it
    with PyTorch's ``AOTIModelPackageLoader``, without Python. The file requires the version of
    PyTorch that wrote it, and a processor with the same vector instructions.

    Args:
        detector: in eval mode; the compiled code runs on the current device of the detector.
        file: path of the file to write, ending in ``.pt2``.
        size: (height, width) of the only images that the code accepts; None for any size.
        about: texts by name, stored in the file.

    Raises:
        ValueError: the detector is in training mode, or the file does not end in ``.pt2``.
        RuntimeError: no C++ compiler was found.

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
