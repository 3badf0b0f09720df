# SPDX-License-Identifier: MIT
"""Code that tests/detector/test_distributed.py runs in several processes and in one."""

import json
import os
import signal
import sys
from pathlib import Path

import torch
from paths import ROOT
from torch import nn

from detops.config import load_config
from detops.data import Shapes
from detops.data.shapes import CLASSES
from detops.data.transforms import TrainTransform
from detops.distributed import (
    best_indices,
    gather_objects,
    is_main,
    mean_count,
    on_main,
    processes,
    rank,
)
from detops.engine import Detector, Trainer, evaluate
from detops.modeling import build_detection_model

SMALL = [
    "MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16,
    "MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 32,
    "MODEL.ROI_BOX_HEAD.NUM_CLASSES", 3,
    # So few that samples and the limit over the batch run short: normalizers vary.
    "MODEL.RPN.FPN_POST_NMS_PER_BATCH", True, "MODEL.RPN.FPN_POST_NMS_TOP_N_TRAIN", 60,
    "INPUT.MIN_SIZE_TRAIN", (48, 64, 80), "INPUT.MAX_SIZE_TRAIN", 96,
    "SOLVER.OPTIMIZER", "SGD", "SOLVER.BASE_LR", 0.02, "SOLVER.WARMUP_ITERS", 2,
    "SOLVER.MAX_ITER", 6, "SOLVER.IMS_PER_BATCH", 4, "SOLVER.EMA_DECAY", 0.9,
]  # fmt: skip

# Rounding errors in a gradient do not enlarge AdamW's steps.
ACCUMULATION = ["SOLVER.ACCUMULATE", 2, "SOLVER.OPTIMIZER", "ADAMW", "SOLVER.BASE_LR", 0.001]


class Scenes(torch.utils.data.Dataset):
    """Noise images, portrait and landscape in several sizes, with 0 to 4 bright rectangles."""

    def __init__(self):
        sizes = [(48, 72), (72, 48), (64, 64), (50, 80), (80, 50)] * 2
        self.images = [{"height": height, "width": width} for height, width in sizes]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        height, width = self.images[index].values()
        image = torch.rand(3, height, width, generator=generator) / 2
        boxes = []
        for _ in range(index % 5):
            x, y, w, h = (torch.rand(4, generator=generator) * 20 + 6).int().tolist()
            boxes.append([x, y, x + w, y + h])
            image[:, y : y + h, x : x + w] += 0.4
        # The augmentation uses the default generators.
        image = image * (0.8 + 0.2 * torch.rand(()))
        labels = torch.arange(len(boxes)) % 2 + 1
        return image, {"boxes": torch.tensor(boxes).float().reshape(-1, 4), "labels": labels}


class Branches(nn.Module):
    """Runs its head only for images with objects, like a mask head only for positives."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 1)

    def forward(self, images, targets):
        x = torch.stack([self.body(image[None]).mean(dim=(0, 2, 3)) for image in images])
        x = x + 0.1 * torch.rand(x.shape)
        reached = x[[target["labels"].numel() > 0 for target in targets]]
        losses = {"loss_body": x.square().mean()}
        normalizer = mean_count(len(reached), x)
        if len(reached):
            losses["loss_head"] = (self.head(reached) - 1).square().sum() / normalizer
        else:
            losses["loss_head"] = x.new_zeros(())
        return losses


class OneBox(nn.Module):
    """Finds one box with a mask to evaluate; the mean of the image sets its size."""

    def forward(self, images):
        detections = []
        for image in images:
            side = float(10 + image.mean() * 20)
            masks = torch.zeros(1, 1, *image.shape[1:], dtype=torch.bool)
            masks[..., 2:12, 2 : int(side)] = True
            detections.append(
                {
                    "boxes": torch.tensor([[2.0, 2.0, side, 12.0]]),
                    "labels": torch.tensor([1]),
                    "scores": image.mean()[None],
                    "masks": masks,
                }
            )
        return detections


def detector_trainer(output, overrides=()):
    cfg = load_config(ROOT / "configs" / "tree_crowns.yaml", [*SMALL, *overrides])
    torch.manual_seed(0)
    return Trainer(build_detection_model(cfg), Scenes(), cfg, "", ("a", "b"), output)


class Double(torch.utils.data.Dataset):
    """Generated shapes in float64."""

    def __init__(self, cfg):
        self.shapes = Shapes(size=64, transform=TrainTransform(cfg))
        self.images = self.shapes.images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, target = self.shapes[index]
        return image.double(), target | {"boxes": target["boxes"].double()}


def double_trainer(output):
    """Returns a trainer of a Mask R-CNN that learns fast, in float64.

    A rounding error can swap a box that is barely proposed or sampled. In float32 the curves of
    any two orders of summation therefore diverge after some steps, even those of one process with
    one thread and with two. In float64 these steps are too few for that.
    """
    cfg = load_config(
        ROOT / "configs" / "shapes.yaml",
        [
            *("DTYPE", "float32", "SOLVER.IMS_PER_BATCH", 4, "SOLVER.MAX_ITER", 40),
            *("SOLVER.WARMUP_ITERS", 5, "INPUT.MIN_SIZE_TRAIN", (64, 80)),
            *("MODEL.RESNETS.STEM_OUT_CHANNELS", 16, "MODEL.RESNETS.RES2_OUT_CHANNELS", 16),
            *("MODEL.RESNETS.BACKBONE_OUT_CHANNELS", 16, "MODEL.ROI_BOX_HEAD.MLP_HEAD_DIM", 64),
            *("MODEL.ROI_MASK_HEAD.CONV_LAYERS", (16,)),
        ],
    )
    torch.manual_seed(0)
    return Trainer(build_detection_model(cfg).double(), Double(cfg), cfg, "", CLASSES, output)


def branches_trainer(output):
    cfg = load_config(
        None,
        [
            *("SOLVER.IMS_PER_BATCH", 2, "SOLVER.MAX_ITER", 10, "SOLVER.CHECKPOINT_PERIOD", 4),
            *("SOLVER.BASE_LR", 0.05, "SOLVER.WARMUP_ITERS", 3, "SOLVER.EMA_DECAY", 0.5),
            *("DATALOADER.NUM_WORKERS", 0),
        ],
    )
    torch.manual_seed(rank())
    return Trainer(Branches(), Scenes(), cfg, "", ("a", "b"), output)


class Photographs:
    """A dataset of `count` images in memory, with the interface that evaluate() uses."""

    path, names, category_ids = "photographs", ("a",), (3,)

    def __init__(self, count):
        self.images = [{"id": 9 - i, "width": 40, "height": 30} for i in range(count)]

    def __len__(self):
        return len(self.images)

    def image(self, index):
        return torch.full((3, 30, 40), index / 5)

    def ground_truth(self):
        annotations = []
        for i, image in enumerate(self.images):
            width = 8 + 3 * i
            corners = [2, 2, 2 + width, 2, 2 + width, 12, 2, 12]
            annotations.append(
                {
                    "id": i + 1,
                    "image_id": image["id"],
                    "category_id": 3,
                    "bbox": [2, 2, width, 10],
                    "area": 10 * width,
                    "iscrowd": 0,
                    "segmentation": [corners],
                }
            )
        categories = [{"id": 3, "name": "a"}]
        return {"images": self.images, "categories": categories, "annotations": annotations}


def evaluations():
    detector = Detector(OneBox(), ["a"], device="cpu")
    return {str(count): evaluate(detector, Photographs(count)) for count in (5, 1, 0)}


def error_of_main():
    def fail():
        raise OSError("nothing there")

    try:
        on_main(fail)
    except OSError as error:
        return str(error)


def together(folder):
    detector_trainer(folder / "detector").run()
    detector_trainer(folder / "pieces", ACCUMULATION).run()
    double_trainer(folder / "double").run()
    branches_trainer(folder / "branches").run()
    gathered = gather_objects(
        {
            "rank": rank(),
            "evaluations": evaluations(),
            "error": error_of_main(),
            "best": best_indices(torch.tensor([[5.0, 1, 3], [4.0, 9, 2]][rank()]), 3).tolist(),
            "none": float(mean_count(0, torch.zeros(1))),
            "some": float(mean_count(rank() * 3, torch.zeros(1))),
        }
    )
    if is_main():
        (folder / "results.json").write_text(json.dumps(gathered))


def killed(folder):
    """Kills one process once, by a signal that cannot be caught, in the middle of step 7."""

    def die(record):
        first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if first and rank() == 1 and record["step"] == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    trainer = branches_trainer(folder / "killed")
    has_checkpoint = on_main(trainer.checkpoint_path.exists)
    if has_checkpoint:
        trainer.resume()
    if is_main():
        with open(folder / "starts", "a") as starts:
            starts.write(f"{trainer.step}\n")
    trainer.run(die)


if __name__ == "__main__":
    with processes("cpu"):
        {"together": together, "killed": killed}[sys.argv[1]](Path(sys.argv[2]))
