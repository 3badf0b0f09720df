"""Times detectors end to end: ours, torchvision's, optimized or not, and other runtimes.

python benchmarks/detectors.py --json benchmarks/results/detectors-amd-epyc-avx512.json

All systems of a case run in turn in one process. Times are medians of CPU seconds and wall-clock
seconds, without the first round. Weights are random, with frozen batch norm as in torchvision's
trained models, and scaled so that the maximum number of detections survives. Our detectors share
torchvision's weights. ONNX Runtime and OpenVINO run the output of `detops export`, in float32 and
with as many threads; runtimes that are not installed are reported and skipped. With
`--keep-memory`, the C library keeps freed memory, for all systems alike.
"""

import argparse
import ctypes
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection import backbone_utils
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

import detops
import detops.export
from detops.bench.run import describe_machine
from detops.config import load_config
from detops.engine.weights import load_weights_into
from detops.marks import fill
from detops.modeling import build_detection_model

IMAGE_SIZE = (800, 1333)
TRAINING_SIDE = 320
CONFIGS = Path(detops.__file__).parent / "configs"

Run = Callable[[], Any]


def resnet50_fpn(dense: bool = False) -> nn.Module:
    """Builds the backbone that torchvision's model functions build for trained weights."""
    extra = {"returned_layers": [2, 3, 4], "extra_blocks": LastLevelP6P7(256, 256)} if dense else {}
    return backbone_utils.resnet_fpn_backbone(
        backbone_name="resnet50",
        weights=None,
        norm_layer=FrozenBatchNorm2d,
        trainable_layers=3,
        **extra,
    )


DETECTORS: dict[str, Callable[..., nn.Module]] = {
    "fasterrcnn_resnet50_fpn": lambda **k: detection.FasterRCNN(resnet50_fpn(), 91, **k),
    "maskrcnn_resnet50_fpn": lambda **k: detection.MaskRCNN(resnet50_fpn(), 91, **k),
    "retinanet_resnet50_fpn": lambda **k: detection.RetinaNet(resnet50_fpn(dense=True), 91, **k),
    "fcos_resnet50_fpn": lambda **k: detection.FCOS(resnet50_fpn(dense=True), 91, **k),
    "ssd300_vgg16": partial(detection.ssd300_vgg16, weights=None, weights_backbone=None),
}


def logit_layers(model: nn.Module) -> list[nn.Module]:
    """Returns the layers that compute the class logits."""
    if hasattr(model, "roi_heads"):
        return [model.roi_heads.box_predictor.cls_score]
    head = model.head.classification_head
    return [head.cls_logits] if hasattr(head, "cls_logits") else list(head.module_list)


@torch.no_grad()
def detector(name: str, **kwargs: Any) -> nn.Module:
    """Returns a torchvision detector with random weights and many detections."""
    torch.manual_seed(0)
    model = DETECTORS[name](**kwargs).eval()
    for key, module in model.named_modules():
        if isinstance(module, FrozenBatchNorm2d) and key.endswith("bn3"):
            module.weight.fill_(0.2)  # keeps activations from growing with each residual block

    def rescale(layer: nn.Module, _: Any, logits: torch.Tensor) -> None:
        layer.weight *= 2 / logits.std()
        nn.init.zeros_(layer.bias)

    hooks = [layer.register_forward_hook(rescale) for layer in logit_layers(model)]
    model([torch.rand(3, 320, 320)])
    for hook in hooks:
        hook.remove()
    return model


def detops_detector(torchvision_model: nn.Module, config: str, *overrides: Any) -> nn.Module:
    """Returns our detector with torchvision's weights."""
    model = build_detection_model(load_config(CONFIGS / f"{config}.yaml", overrides))
    # Our weights include the epsilon; torchvision's module has an epsilon of 0 or 1e-5.
    epsilon = next(m.eps for m in torchvision_model.modules() if isinstance(m, FrozenBatchNorm2d))
    load_weights_into(
        model, torchvision_model.state_dict(), complete=True, batch_norm_epsilon=epsilon
    )
    return model.to(memory_format=torch.channels_last)


def inference(model: nn.Module) -> Run:
    images = [noise_image()]
    model.eval()

    def run() -> int:
        with torch.inference_mode():
            return len(model(images)[0]["scores"])

    return run


def training(model: nn.Module) -> Run:
    torch.manual_seed(1)
    side, count = TRAINING_SIDE, 8
    images = [torch.rand(3, side, side) for _ in range(2)]
    targets = []
    for _ in images:
        corner = torch.rand(count, 2) * side * 0.6
        boxes = torch.cat([corner, corner + 20 + torch.rand(count, 2) * side * 0.3], 1)
        masks = (torch.rand(count, side, side) > 0.5).byte()
        targets.append({"boxes": boxes, "labels": torch.randint(1, 91, (count,)), "masks": masks})
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-4)
    model.train()

    def run() -> None:
        optimizer.zero_grad()
        sum(model(images, targets).values()).backward()
        optimizer.step()

    return run


def in_context(context: Callable[[], AbstractContextManager], run: Run) -> Run:
    def wrapped() -> Any:
        with context():
            return run()

    return wrapped


def bfloat16() -> AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16)


@cache
def noise_image() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.rand(3, *IMAGE_SIZE)


def in_onnx_runtime(file: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    return partial(session.run, None, {"image": noise_image().numpy()})


def in_openvino(file: Path, threads: int) -> Run:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    settings["PERFORMANCE_HINT"] = "LATENCY"
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return partial(compiled, {"image": noise_image().numpy()})


def write_onnx(model: nn.Module, file: Path) -> None:
    """Exports our detector for the exact size of the input images, so it does not enlarge them."""
    model.min_size_test = 0  # type: ignore[assignment]
    detops.export.onnx(model, file)


RUNTIMES = {"ONNX Runtime": in_onnx_runtime, "OpenVINO": in_openvino}


def inference_runs(name: str, config: str | None, threads: int, folder: Path) -> dict[str, Run]:
    """Returns all systems that run a detector; ``config`` names our config, if there is one."""
    torchvision_model = detector(name)
    runs = {"torchvision": inference(torchvision_model)}
    runs["torchvision, patched"] = in_context(detops.patch_torchvision, runs["torchvision"])
    runs["torchvision, optimized"] = inference(detops.optimize(torchvision_model))
    if config is None:
        return runs
    detops_model = detops_detector(torchvision_model, config).eval()
    runs["detops"] = inference(detops_model)
    runs["detops, optimized"] = inference(detops.optimize(detops_model))
    runs["detops, optimized, exact"] = inference(detops.optimize(detops_model, exact=True))
    file = folder / f"{name}.onnx"
    write_onnx(detops_model, file)
    for runtime, make in RUNTIMES.items():
        try:
            runs[runtime] = make(file, threads)
        except ModuleNotFoundError as error:
            print(f"{runtime} is skipped: {error}", file=sys.stderr)
    return runs


def training_runs(context: Callable[[], AbstractContextManager]) -> dict[str, Run]:
    """Returns a training step of Mask R-CNN for each system."""
    torchvision_model = detector(MASK, min_size=TRAINING_SIDE, max_size=TRAINING_SIDE)
    sizes = ["INPUT.MIN_SIZE_TRAIN", (TRAINING_SIDE,), "INPUT.MAX_SIZE_TRAIN", TRAINING_SIDE]
    step = in_context(context, training(torchvision_model))
    return {
        "torchvision": step,
        "torchvision, patched": in_context(detops.patch_torchvision, step),
        "detops": in_context(
            context,
            training(detops_detector(torchvision_model, "torchvision_mask_rcnn_R_50_FPN", *sizes)),
        ),
    }


MASK = "maskrcnn_resnet50_fpn"
CONFIG_NAMES = {
    "fasterrcnn_resnet50_fpn": "torchvision_faster_rcnn_R_50_FPN",
    MASK: "torchvision_mask_rcnn_R_50_FPN",
    "retinanet_resnet50_fpn": "torchvision_retinanet_R_50_FPN",
}


def median_times(runs: dict[str, Run], repeats: int) -> dict[str, dict[str, float]]:
    """Returns median CPU seconds, wall-clock seconds and page faults per call of each system."""
    figures: dict[str, list[tuple[float, float, int]]] = {name: [] for name in runs}
    for i in range(repeats + 1):
        for name, run in runs.items():
            before, clock = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            run()
            clock, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_SELF)
            cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            if i:
                figures[name].append((cpu, clock, after.ru_minflt - before.ru_minflt))
    columns = ("cpu", "wall", "faults")
    return {
        name: dict(zip(columns, map(statistics.median, zip(*rows, strict=True)), strict=True))
        for name, rows in figures.items()
    }


def keep_memory() -> None:
    """Makes glibc's malloc never use mmap for single allocations, and never return memory."""
    libc = ctypes.CDLL(None)
    M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


@torch.inference_mode()
def arithmetic(name: str) -> dict[str, float]:
    """Returns billions of operations per image, direct and with Winograd, and the peak rate.

    A multiplication and an addition count as two operations. The peak rate is that of the fastest
    PyTorch operation on this CPU: a product of large matrices, or a convolution of a large feature
    map.
    """
    model, count = detector(name), {"direct": 0.0, "winograd": 0.0}

    def add(layer: Any, inputs: Any, output: torch.Tensor) -> None:
        features = output if isinstance(layer, nn.Conv2d | nn.Linear) else inputs[0]
        weights_per_position = layer.weight.numel() / (
            layer.weight.size(int(features is not output))
        )
        operations = 2 * features.numel() * weights_per_position / 1e9
        is_3x3 = isinstance(layer, nn.Conv2d) and layer.kernel_size == (3, 3)
        tiles = 4 if is_3x3 and layer.stride == layer.dilation == (1, 1) else 1
        count["direct"] += operations
        count["winograd"] += operations / tiles

    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
            module.register_forward_hook(add)
    model([noise_image()])
    square = torch.rand(2048, 2048)
    kernel, large = torch.rand(256, 256, 3, 3), torch.rand(1, 256, 128, 128)
    kernel, large = (t.to(memory_format=torch.channels_last) for t in (kernel, large))
    best = 0.0
    for run, operations in (
        (lambda: square @ square, 2 * 2048**3),
        (lambda: nn.functional.conv2d(large, kernel, padding=1), 2 * kernel.numel() * 128**2),
    ):
        for _ in range(5):
            began = time.process_time()
            run()
            best = max(best, operations / 1e9 / (time.process_time() - began))
    return count | {"a second": best}


def cases(threads: int, folder: Path) -> dict[str, Callable[[], dict[str, Run]]]:
    """Returns the benchmark cases by name."""
    found: dict[str, Callable[[], dict[str, Run]]] = {
        f"{name}, inference": partial(inference_runs, name, CONFIG_NAMES.get(name), threads, folder)
        for name in DETECTORS
    }
    found[f"{MASK}, training step"] = partial(training_runs, nullcontext)
    found[f"{MASK}, training step, bfloat16"] = partial(training_runs, bfloat16)
    return found


FASTEST = "detops, optimized"


def write_page(results: dict[str, Any], page: Path) -> None:
    """Writes the tables of all runs between the marks of a page."""
    lines = [
        f"{results['processor']}, PyTorch {results['torch'].split('+')[0]}.",
        "",
        "| | system | CPU s | relative CPU s | page faults | s, two threads | relative s |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, rows in results["cases"].items():
        fastest = rows.get(FASTEST) or rows.get("torchvision, optimized") or rows["detops"]
        for system, row in rows.items():
            columns = [f"{row['cpu 1']:.2f}", f"{row['cpu 1'] / fastest['cpu 1']:.2f}"]
            columns += [f"{row['faults 1']:,.0f}", f"{row['wall 2']:.2f}"]
            columns.append(f"{row['wall 2'] / fastest['wall 2']:.2f}")
            lines.append(f"| {case} | {system} | {' | '.join(columns)} |")
            case = ""
    lines += [
        "",
        "The limit of the arithmetic is the operations of all layers, divided by the highest rate",
        "of PyTorch on one thread, in a product of large matrices or a convolution of a large map:",
        "",
        "| | GFLOP | GFLOP with Winograd | GFLOP/s | limits, s | detops | OpenVINO |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in results["arithmetic"].items():
        rows, rate = results["cases"][f"{name}, inference"], row["a second"]
        limits = [row[key] / rate for key in ("direct", "winograd")]
        columns = [f"{row['direct']:.0f}", f"{row['winograd']:.0f}", f"{rate:.0f}"]
        columns.append(" and ".join(f"{limit:.2f}" for limit in limits))
        for system, limit in ((FASTEST, limits[1]), ("OpenVINO", limits[0])):
            known = system in rows
            columns.append(f"{rows[system]['cpu 1'] / limit:.2f} times" if known else "-")
        lines.append(f"| {name} | {' | '.join(columns)} |")
    page.write_text(fill(page.read_text(), "detectors", "\n".join(lines) + "\n"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument(
        "--keep-memory",
        action="store_true",
        help="make the C library keep freed memory, for all systems",
    )
    parser.add_argument("--json", type=Path, help="file to add the results to")
    parser.add_argument("--page", type=Path, help="page to put the tables into, from that file")
    args = parser.parse_args()
    if args.keep_memory:
        keep_memory()
    results: dict[str, Any] = {"torch": torch.__version__, "image": IMAGE_SIZE, "cases": {}}
    results |= {
        "processor": describe_machine(torch.device("cpu")).name,
        "keep_memory": args.keep_memory,
    }
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    print(
        "| case | system | threads | CPU s | s | page faults |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for threads in args.threads:
        torch.set_num_threads(threads)
        if threads == 1 and not args.only:
            results["arithmetic"] = {name: arithmetic(name) for name in CONFIG_NAMES}
        with tempfile.TemporaryDirectory() as folder:
            all_cases = cases(threads, Path(folder))
            if not any(args.only in name for name in all_cases):
                parser.error(
                    f"--only {args.only!r}: no case name contains it: {', '.join(all_cases)}"
                )
            for name, make in all_cases.items():
                if args.only not in name:
                    continue
                case_results = results["cases"].setdefault(name, {})
                for system, row in median_times(make(), args.repeats).items():
                    figures = f"{row['cpu']:.3f} | {row['wall']:.3f} | {row['faults']:,.0f}"
                    print(f"| {name} | {system} | {threads} | {figures} |", flush=True)
                    case_results.setdefault(system, {}).update(
                        {f"{key} {threads}": value for key, value in row.items()}
                    )
                if args.json:
                    args.json.write_text(json.dumps(results, indent=1) + "\n")
    if args.page:
        write_page(results, args.page)


if __name__ == "__main__":
    main()
