# SPDX-License-Identifier: MIT
"""Quantization of ONNX detectors to 8 bits."""

import tempfile
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
from torch import Tensor

from .load import onnxruntime

QUANTIZED = ["Conv", "ConvTranspose", "Gemm"]
# Layers that output coordinates and scores: small, and worth full precision.
PREDICTIONS = ("cls_logits", "bbox_pred", "cls_score", "mask_fcn_logits", "kps_score_lowres")
COLOUR_CHANNELS = 3


def quantize(source: str | Path, file: str | Path, images: Iterable[Tensor]) -> None:
    """Quantizes a float32 detector in ONNX to 8 bits.

    Static quantization by ONNX Runtime, "Integer Quantization for Deep Learning Inference" (Wu et
    al., 2020), sections 3 and 5. Weights have a scale per output channel. Activations have a scale
    and a zero point from their minimum and maximum in each image, averaged over the images. Body,
    pyramid and heads are quantized; the first layer and those that output coordinates and scores
    are not. ONNX Runtime and OpenVINO run the file. It is faster on processors that multiply 8-bit
    integers (AVX-512 VNNI, AMX, and their equivalents on ARM).

    Args:
        source: a file written by :func:`detops.export.onnx`.
        file: path of the file to write, ending in ``.onnx``.
        images: a few dozen typical images, float ``[3, h, w]``, RGB in 0..1; tiles if images are
            cut into tiles. Images without detections are skipped: they contribute nothing to the
            heads.

    Raises:
        ValueError: there are no detections in the images, or ``file`` does not end in ``.onnx``.
        ModuleNotFoundError: onnx and onnxruntime are not installed.

    Example:
        >>> detops.export.quantize("detector.onnx", "int8.onnx", images)  # doctest: +SKIP
    """
    if Path(file).suffix != ".onnx":
        raise ValueError(f"detops.export.quantize: file must end in .onnx, got {file}")
    import onnx

    session = onnxruntime().InferenceSession(source, providers=["CPUExecutionProvider"])
    feeds = ({"image": np.ascontiguousarray(x.detach().cpu())} for x in images)
    with_detections = (feed for feed in feeds if len(session.run(["scores"], feed)[0]) > 0)
    first = next(with_detections, None)
    if first is None:
        raise ValueError("detops.export.quantize: images must contain detections, got none")
    remaining = chain([first], with_detections)
    from onnxruntime import quantization

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(remaining, None)

    with tempfile.TemporaryDirectory() as folder:
        # Folds constants: the quantizer does not recognise computed weights as weights.
        folded = Path(folder) / "folded.onnx"
        quantization.quant_pre_process(str(source), str(folded), skip_symbolic_shape=True)
        graph = onnx.load(folded).graph
        channels = {weight.name: weight.dims[1] for weight in graph.initializer if weight.dims[1:]}
        excluded = [
            node.name
            for node in graph.node
            if node.op_type in QUANTIZED and _is_excluded(node.input[1], channels)
        ]
        quantization.quantize_static(
            str(folded),
            str(file),
            Reader(),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=QUANTIZED,
            nodes_to_exclude=excluded,
            per_channel=True,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"CalibMovingAverage": True},
        )


def _is_excluded(weight: str, channels: dict[str, int]) -> bool:
    return channels.get(weight) == COLOUR_CHANNELS or any(
        f"{name}." in weight for name in PREDICTIONS
    )
