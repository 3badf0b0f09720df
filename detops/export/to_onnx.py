# SPDX-License-Identifier: MIT
"""Export to ONNX, for ONNX Runtime and OpenVINO."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .program import program

OPSET = 20


def onnx(
    detector: nn.Module,
    file: str | Path | None = None,
    size: tuple[int, int] | None = None,
    opset_version: int = OPSET,
    about: Mapping[str, str] | None = None,
) -> Any:
    """Exports a detector to standard operators of ONNX.

    The model has one input, ``image``, float ``[3, h, w]``, RGB in 0..1. Its outputs are ``boxes``,
    ``labels``, ``scores`` and any further results of the detector, as in PyTorch. The file contains
    the weights.

    Args:
        detector: in eval mode, on the CPU, in float32.
        file: path of the file to write; None writes none.
        size: (height, width) of the only images that the model accepts; None for any size.
        opset_version: version of the ONNX operators, 20 or later.
        about: texts by name, stored in the file as its ``metadata_props``.

    Returns:
        The ``torch.onnx.ONNXProgram``.

    Raises:
        ValueError: the detector is in training mode, or ``opset_version`` is below 20.
        NotImplementedError: an op cannot be exported to ONNX; the message names it.
        ModuleNotFoundError: onnx and onnxscript are not installed.

    Example:
        >>> model = detops.modeling.build_detection_model(detops.config.load_config())
        >>> detops.export.onnx(model.eval(), "detector.onnx")  # doctest: +SKIP
    """
    if opset_version < OPSET:
        raise ValueError(
            f"detops.export.onnx: opset_version must be at least {OPSET}, got {opset_version}"
        )
    from .translations import translations

    table = translations()
    exported = program(detector, size)
    for node in exported.graph.nodes:
        op = node.target
        if node.op == "call_function" and str(op).startswith("detops") and op not in table:
            name = str(op).partition(".")[2].partition(".")[0]
            raise NotImplementedError(f"detops.export.onnx: {name} cannot be exported to ONNX")
    names = list(torch.utils._pytree.tree_leaves(exported.call_spec.out_spec.context))
    onnx_program: Any = torch.onnx.export(
        exported,
        (),
        input_names=["image"],
        output_names=names,
        opset_version=opset_version,
        custom_translation_table=table,
        verbose=False,
    )
    onnx_program.model.metadata_props.update(about or {})
    if file is not None:
        onnx_program.save(str(file))
    return onnx_program
