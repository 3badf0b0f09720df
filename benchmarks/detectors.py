"""End-to-end times of detectors: torchvision's under our ops, and our own against torchvision's.

python benchmarks/detectors.py --threads 2 --json detectors.json

Each pair runs in turn in one process; medians, the first run of each not counted. Weights are
random, with frozen batch norm as in torchvision's trained models, and scaled so that as many
detections survive as a detector gives at most. Our own detector gets torchvision's weights and runs
in channels_last, as the package does; torchvision's runs as it is given.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models import detection
from torchvision.models.detection import backbone_utils
from torchvision.ops import FrozenBatchNorm2d
from torchvision.ops.feature_pyramid_network import LastLevelP6P7

import detops
from detops.config import load_config
from detops.engine.weights import load_weights_into
from detops.modeling import build_detection_model

IMAGE = (800, 1333)
TRAINING_SIDE = 320
CONFIGS = Path(detops.__file__).parent / "configs"

Run = Callable[[], Any]


def resnet50_fpn(dense: bool = False) -> nn.Module:
    """What the models' functions build when they are given trained weights."""
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


def last_layers(model: nn.Module) -> list[nn.Module]:
    """Those that give the logits of the classes."""
    if hasattr(model, "roi_heads"):
        return [model.roi_heads.box_predictor.cls_score]
    head = model.head.classification_head
    return [head.cls_logits] if hasattr(head, "cls_logits") else list(head.module_list)


@torch.no_grad()
def detector(name: str, **kwargs: Any) -> nn.Module:
    """A torchvision detector with random weights and many detections."""
    torch.manual_seed(0)
    model = DETECTORS[name](**kwargs).eval()
    for key, module in model.named_modules():
        if isinstance(module, FrozenBatchNorm2d) and key.endswith("bn3"):
            module.weight.fill_(0.2)  # a residual body without normalisation grows by each block

    def spread(layer: nn.Module, _: Any, logits: torch.Tensor) -> None:
        layer.weight *= 2 / logits.std()
        nn.init.zeros_(layer.bias)

    hooks = [layer.register_forward_hook(spread) for layer in last_layers(model)]
    model([torch.rand(3, 320, 320)])
    for hook in hooks:
        hook.remove()
    return model


def ours(theirs: nn.Module, *overrides: Any) -> nn.Module:
    """Our Mask R-CNN with the weights of torchvision's."""
    cfg = load_config(CONFIGS / "torchvision_mask_rcnn_R_50_FPN.yaml", overrides)
    model = build_detection_model(cfg)
    # Our weights have no epsilon of their own; torchvision's module has 0 or 1e-5.
    epsilon = next(m.eps for m in theirs.modules() if isinstance(m, FrozenBatchNorm2d))
    load_weights_into(model, theirs.state_dict(), complete=True, batch_norm_epsilon=epsilon)
    return model.to(memory_format=torch.channels_last)


def inference(model: nn.Module) -> Run:
    torch.manual_seed(1)
    images = [torch.rand(3, *IMAGE)]
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


def inside(context: Callable[[], AbstractContextManager], run: Run) -> Run:
    def within() -> Any:
        with context():
            return run()

    return within


def compare(pair: dict[str, Run], repeats: int) -> dict[str, float]:
    """Seconds of each, run in turn, and how many times the second takes the time of the first."""
    times: dict[str, list[float]] = {name: [] for name in pair}
    for i in range(repeats + 1):
        for name, run in pair.items():
            begin = time.perf_counter()
            run()
            if i:
                times[name].append(time.perf_counter() - begin)
    medians = [statistics.median(t) for t in times.values()]
    return dict(zip(pair, medians, strict=True)) | {"ratio": medians[1] / medians[0]}


def bfloat16() -> AbstractContextManager:
    return torch.autocast("cpu", torch.bfloat16)


def patched(name: str, train: bool) -> dict[str, Run]:
    side = {"min_size": TRAINING_SIDE, "max_size": TRAINING_SIDE} if train else {}
    run = (training if train else inference)(detector(name, **side))
    return {"patched": inside(detops.patch_torchvision, run), "torchvision": run}


def own(train: bool, context: Callable[[], AbstractContextManager]) -> dict[str, Run]:
    side = {"min_size": TRAINING_SIDE, "max_size": TRAINING_SIDE} if train else {}
    theirs = detector("maskrcnn_resnet50_fpn", **side)
    sizes = ["INPUT.MIN_SIZE_TRAIN", (TRAINING_SIDE,), "INPUT.MAX_SIZE_TRAIN", TRAINING_SIDE]
    make = training if train else inference
    mine = make(ours(theirs, *sizes))
    return {"detops": inside(context, mine), "torchvision": inside(context, make(theirs))}


MASK = "maskrcnn_resnet50_fpn"
CASES: dict[str, Callable[[], dict[str, Run]]] = {
    **{f"patched {name}, inference": partial(patched, name, False) for name in DETECTORS},
    f"patched {MASK}, training step": partial(patched, MASK, True),
    "our Mask R-CNN, inference": partial(own, False, nullcontext),
    "our Mask R-CNN, inference, bfloat16": partial(own, False, bfloat16),
    "our Mask R-CNN, training step": partial(own, True, nullcontext),
    "our Mask R-CNN, training step, bfloat16": partial(own, True, bfloat16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {}
    print("| case | detops s | torchvision s | ratio |\n|---|---|---|---|", flush=True)
    for name, make in CASES.items():
        if args.only in name:
            results[name] = compare(make(), args.repeats)
            first, second, ratio = results[name].values()
            print(f"| {name} | {first:.3f} | {second:.3f} | {ratio:.2f} |", flush=True)
    if args.json:
        header = {"torch": torch.__version__, "threads": args.threads, "image": IMAGE}
        args.json.write_text(json.dumps(header | {"cases": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
