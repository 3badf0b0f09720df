"""Compares the time per training step of one network on our ops and on torchvision's.

python benchmarks/train_step.py --config configs/tree_crowns.yaml --threads 2
"""

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import torch
import torchvision
from torch import Tensor
from torchvision.models.detection._utils import BoxCoder as TorchvisionBoxCoder
from torchvision.ops.poolers import LevelMapper

from detops.config import load_config
from detops.modeling import build_detection_model

WARM_UP = 5


class BoxCoder(TorchvisionBoxCoder):
    """torchvision's arithmetic under our method names."""

    def __init__(self, weights=(1.0, 1.0, 1.0, 1.0)) -> None:
        super().__init__(weights)

    def encode(self, boxes: Tensor, anchors: Tensor) -> Tensor:
        return self.encode_single(boxes, anchors)

    def decode(self, deltas: Tensor, anchors: Tensor) -> Tensor:
        return self.decode_single(deltas, anchors)


def multiscale_roi_align(
    inputs, boxes, size, scales, ratio=-1, *, canonical_scale=224, canonical_level=4
):
    """Pools like torchvision: one call per level, scattered into the result."""
    first = -torch.log2(torch.tensor(scales[0])).round().int().item()
    mapper = LevelMapper(first, first + len(scales) - 1, canonical_scale, canonical_level)
    levels = mapper(boxes)
    index = torch.cat([b.new_full((len(b), 1), i) for i, b in enumerate(boxes)])
    rois = torch.cat([index, torch.cat(boxes)], 1)
    out = inputs[0].new_zeros(len(rois), inputs[0].size(1), size, size)
    for level, (x, scale) in enumerate(zip(inputs, scales, strict=True)):
        selected = torch.where(levels == level)[0]
        out[selected] = torchvision.ops.roi_align(x, rois[selected], size, scale, ratio)
    return out


@contextmanager
def torchvision_ops():
    """Replaces every op that the detector calls with torchvision's."""
    ops = torchvision.ops
    replaced = {
        "poolers": {"multiscale_roi_align": multiscale_roi_align},
        "rpn.inference": {
            "batched_nms": ops.batched_nms,
            "clip_boxes_to_image": ops.clip_boxes_to_image,
            "remove_small_boxes": ops.remove_small_boxes,
        },
        "rpn.loss": {"box_iou": ops.box_iou},
        "roi_heads.box.loss": {"box_iou": ops.box_iou},
        "build": {"BoxCoder": BoxCoder},
    }
    with ExitStack() as stack:
        for module, names in replaced.items():
            stack.enter_context(mock.patch.multiple(f"detops.modeling.{module}", **names))
        yield


def training_step(cfg, seed: int = 0) -> Callable[[], Tensor]:
    """Returns a function that runs one training step on fixed images."""
    torch.manual_seed(seed)
    model = build_detection_model(cfg).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    images, targets = [], []
    for _ in range(cfg.SOLVER.IMS_PER_BATCH):
        images.append(torch.rand(3, 160, 160))
        corner = torch.rand(15, 2) * 120
        boxes = torch.cat([corner, corner + 15 + 25 * torch.rand(15, 2)], 1)
        targets.append({"boxes": boxes, "labels": torch.ones(15, dtype=torch.int64)})

    def step() -> Tensor:
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="configs/tree_crowns.yaml")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cfg = load_config(args.config)
    ops = {"detops": nullcontext, "torchvision": torchvision_ops}
    steps, times = {}, {name: [] for name in ops}
    for name, context in ops.items():
        with context():
            steps[name] = training_step(cfg)
    for i in range(args.steps + WARM_UP):
        for name, context in ops.items():
            with context():
                start = time.perf_counter()
                steps[name]()
                if i >= WARM_UP:
                    times[name].append(time.perf_counter() - start)
    ours, theirs = (statistics.median(times[name]) for name in ("detops", "torchvision"))
    print(f"detops {ours:.4f} s, torchvision {theirs:.4f} s, ratio {theirs / ours:.2f}")


if __name__ == "__main__":
    main()
