"""Times eight ops next to those of other libraries, on one CPU thread.

python benchmarks/peers.py --output benchmarks/results

All libraries of a case run in turn in one process. Times are CPU times, which other load on the
machine disturbs least. Results are compared before timing.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import onnxruntime
import torch
import torchvision
from onnx import TensorProto, helper

import detops
from detops.bench.case import clustered, gradients, plain_iou, proposals
from detops.bench.corner_report import time_alternately
from detops.bench.ms_deform_attn import CHANNELS, HEADS, POINTS, SHAPES, plain_ms_deform_attn
from detops.bench.report import file_stem
from detops.bench.run import describe_machine, steadiest

Call = Callable[[], Any]
SECONDS, MIN_ROUNDS, BLOCK_SECONDS = 2.0, 7, 0.005


class Comparison(NamedTuple):
    """One op, and equivalent calls by library name; ours is ``detops``."""

    name: str
    calls: dict[str, Call]
    same: Callable[[Any, Any], bool]


def session(op: str, inputs: dict[str, np.ndarray], **attributes: Any) -> Call:
    """Returns a call of a single-op model in ONNX Runtime."""
    types = {np.dtype("float32"): TensorProto.FLOAT, np.dtype("int64"): TensorProto.INT64}
    graph_inputs = [
        helper.make_tensor_value_info(k, types[x.dtype], x.shape) for k, x in inputs.items()
    ]
    kind = TensorProto.INT64 if op == "NonMaxSuppression" else TensorProto.FLOAT
    result = helper.make_tensor_value_info("result", kind, None)
    node = helper.make_node(op, list(inputs), ["result"], **attributes)
    graph = helper.make_graph([node], op, graph_inputs, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    ).run
    return lambda: run(None, inputs)[0]


def same_set(ours: torch.Tensor, theirs: Any) -> bool:
    """Compares indices in any order; ONNX Runtime has them in the last column."""
    theirs = np.asarray(theirs)
    return set(ours.tolist()) == set(theirs.reshape(len(theirs), -1)[:, -1].tolist())


def nearly(ours: torch.Tensor, theirs: Any) -> bool:
    """Compares values up to rounding."""
    return torch.allclose(ours, torch.as_tensor(theirs), rtol=1e-4, atol=1e-4)


def nms(count: int, generator: torch.Generator) -> Comparison:
    boxes, scores = clustered(generator, count)
    rectangles = detops.box_convert(boxes.double(), "xyxy", "xywh").numpy()
    inputs = {"boxes": boxes[None].numpy(), "scores": scores[None, None].numpy()}
    inputs |= {"max_output": np.array([count]), "iou": np.array([0.5], np.float32)}
    calls = {
        "detops": lambda: detops.nms(boxes, scores, 0.5),
        "torchvision": lambda: torchvision.ops.nms(boxes, scores, 0.5),
        "OpenCV": lambda: cv2.dnn.NMSBoxes(rectangles, scores.numpy(), 0.0, 0.5),
        "ONNX Runtime": session("NonMaxSuppression", inputs),
    }
    return Comparison(f"nms, {count:,} boxes", calls, same_set)


def batched_nms(generator: torch.Generator) -> Comparison:
    boxes, scores = clustered(generator, 8000)
    labels = torch.randint(0, 80, (8000,), generator=generator)
    rectangles = detops.box_convert(boxes.double(), "xyxy", "xywh").numpy()
    inputs = (rectangles, scores.numpy(), labels.int().numpy())
    calls = {
        "detops": lambda: detops.batched_nms(boxes, scores, labels, 0.5),
        "torchvision": lambda: torchvision.ops.batched_nms(boxes, scores, labels, 0.5),
        "OpenCV": lambda: cv2.dnn.NMSBoxesBatched(*inputs, 0.0, 0.5),
    }
    return Comparison("batched_nms, 8,000 boxes, 80 classes", calls, same_set)


def roi_align(generator: torch.Generator) -> Iterator[Comparison]:
    features = torch.randn(1, 256, 50, 84, generator=generator)
    boxes = torch.cat([torch.zeros(500, 1), proposals(generator, 500, 1333, 800)], 1)
    inputs = {"x": features.numpy(), "rois": boxes[:, 1:].numpy().copy()}
    inputs |= {"batch_indices": np.zeros(500, np.int64)}
    attributes = {
        "output_height": 7,
        "output_width": 7,
        "sampling_ratio": 2,
        "spatial_scale": 1 / 16,
    }
    attributes |= {"coordinate_transformation_mode": "output_half_pixel"}
    settings = (boxes, 7, 1 / 16, 2)
    pair = {"detops": detops.roi_align, "torchvision": torchvision.ops.roi_align}
    calls = {name: lambda op=op: op(features, *settings) for name, op in pair.items()}
    calls["ONNX Runtime"] = session("RoiAlign", inputs, **attributes)
    yield Comparison("roi_align, 500 RoIs", calls, nearly)
    leaf = features.clone().requires_grad_()
    grad = torch.randn(500, 256, 7, 7, generator=generator)
    calls = {name: gradients(op(leaf, *settings), leaf, grad) for name, op in pair.items()}
    yield Comparison("roi_align backward", calls, lambda a, b: nearly(a[0], b[0]))


def deform_conv2d(generator: torch.Generator) -> Comparison:
    x = torch.randn(1, 64, 64, 64, generator=generator)
    weight = torch.randn(64, 64, 3, 3, generator=generator)
    offset = torch.randn(1, 18, 64, 64, generator=generator)
    pair = {"detops": detops.deform_conv2d, "torchvision": torchvision.ops.deform_conv2d}
    calls = {name: lambda op=op: op(x, offset, weight, padding=1) for name, op in pair.items()}
    return Comparison("deform_conv2d, 64 channels", calls, lambda a, b: nearly(a / 50, b / 50))


def ms_deform_attn(generator: torch.Generator) -> Comparison:
    shapes = torch.tensor(SHAPES)
    starts = shapes.prod(1).cumsum(0) - shapes.prod(1)
    value = torch.randn(1, int(shapes.prod(1).sum()), HEADS, CHANNELS, generator=generator)
    size = (1, 900, HEADS, len(SHAPES), POINTS)
    locations = torch.rand(*size, 2, generator=generator)
    weights = torch.randn(size, generator=generator).flatten(-2).softmax(-1).view(size)
    calls = {
        "detops": lambda: detops.ms_deform_attn(value, shapes, starts, locations, weights),
        "mmcv's way in PyTorch": lambda: plain_ms_deform_attn(value, SHAPES, locations, weights),
    }
    return Comparison("ms_deform_attn, 900 queries", calls, nearly)


def box_iou(generator: torch.Generator) -> Comparison:
    boxes, _ = clustered(generator, 4000)
    pair = {"detops": detops.box_iou, "torchvision": torchvision.ops.box_iou, "PyTorch": plain_iou}
    calls = {name: lambda op=op: op(boxes[:2000], boxes[2000:]) for name, op in pair.items()}
    return Comparison("box_iou, 2,000 x 2,000", calls, nearly)


def comparisons() -> Iterator[Comparison]:
    """Yields the eight comparisons."""
    generator = torch.Generator().manual_seed(0)
    yield nms(1000, generator)
    yield nms(10_000, generator)
    yield batched_nms(generator)
    yield from roi_align(generator)
    yield deform_conv2d(generator)
    yield ms_deform_attn(generator)
    yield box_iou(generator)


def relative_spread(times: Sequence[list[float]]) -> float:
    """Returns the largest interquartile range as a fraction of its median."""
    quartiles = (statistics.quantiles(x, n=4) for x in times)
    return max((high - low) / middle for low, middle, high in quartiles)


def measure(calls: dict[str, Call], seconds: float = SECONDS) -> dict[str, float]:
    """Returns median seconds of the steadiest try; repeats if the first try scatters."""
    blocks = (BLOCK_SECONDS, seconds, MIN_ROUNDS)
    times = steadiest(lambda: time_alternately(list(calls.values()), *blocks), relative_spread)
    return {name: statistics.median(x) for name, x in zip(calls, times, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, help="folder for peers-<device>.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="seconds per try of a case")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    machine = describe_machine(torch.device("cpu"))
    versions = {"OpenCV": cv2.__version__, "ONNX Runtime": onnxruntime.__version__}
    report: dict[str, Any] = {"device": machine.name, "versions": machine.versions | versions}
    report["cases"] = {}
    for case in comparisons():
        ours = case.calls["detops"]()
        for name, call in case.calls.items():
            if not case.same(ours, call()):
                parser.exit(1, f"{case.name}: {name} gives a different result\n")
        times = report["cases"][case.name] = measure(case.calls, arguments.seconds)
        summary = ", ".join(f"{name} {1e3 * t:.3g}" for name, t in times.items())
        print(f"{case.name}: {summary} ms")
    if arguments.output is not None:
        path = arguments.output / f"peers-{file_stem(machine)}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
