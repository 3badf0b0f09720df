# SPDX-License-Identifier: MIT
"""Writes the input of main.cpp: a detector's tensors for a photograph, and Python's results.

    python make_inputs.py photograph.bin

A tensor is a line "name dtype size size ...", followed by its elements in row-major order as raw
bytes. The next tensor follows immediately.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

import detops
from detops.data import Shapes
from detops.engine import Detector

HEIGHT, WIDTH = 160, 240  # the detector's input size, so nothing is resized
WEIGHTS = Path(detops.__file__).parent / "assets" / "shapes" / "weights.pt"


@torch.inference_mode()
def tensors() -> dict[str, Tensor]:
    """Returns the outputs of the network for a photograph of shapes, and the results of the ops."""
    model = Detector.from_checkpoint(WEIGHTS, device="cpu").model
    box, mask = model.roi_heads.box, model.roi_heads.mask
    captured = {}
    box.register_forward_hook(
        lambda _, inputs, __: captured.update(levels=inputs[0], regions=inputs[1])
    )
    box.predictor.register_forward_hook(lambda _, __, out: captured.update(predicted=out))
    mask.predictor.register_forward_hook(lambda _, __, out: captured.update(mask_logits=out))
    scene = Shapes(length=15, size=(HEIGHT, WIDTH), objects=10, split="test", seed=2024)
    (found,) = model([scene.image(14).float() / 255])

    logits, deltas = captured["predicted"]
    levels, proposals = captured["levels"], captured["regions"][0]
    boxes = found["boxes"]
    rois = torch.cat([torch.zeros(len(boxes), 1), boxes], dim=1)
    best = logits.softmax(dim=1)[:, 1:].amax(dim=1)
    return {
        "image_size": torch.tensor([HEIGHT, WIDTH]),
        "proposals": proposals,
        "deltas": deltas,
        "class_logits": logits,
        "level0": levels[0],
        "level1": levels[1],
        "level2": levels[2],
        "mask_logits": captured["mask_logits"],
        "expected_nms": detops.nms(proposals, best, 0.5),
        "expected_boxes": boxes,
        "expected_labels": found["labels"],
        "expected_scores": found["scores"],
        "expected_roi_align": detops.roi_align(levels[0], rois, 7, 0.25, 2),
        "expected_pyramid": mask.feature_extractor.pooler(levels, [boxes]),
        "expected_masks": detops.paste_masks_in_image(
            captured["mask_logits"].sigmoid(), boxes, (HEIGHT, WIDTH)
        ),
    }


def write(path: Path, named_tensors: dict[str, Tensor]) -> None:
    """Writes the file that main.cpp reads."""
    with path.open("wb") as file:
        for name, tensor in named_tensors.items():
            header = [name, str(tensor.dtype).removeprefix("torch."), *map(str, tensor.shape)]
            file.write((" ".join(header) + "\n").encode())
            file.write(tensor.contiguous().numpy().tobytes())


if __name__ == "__main__":
    write(Path(sys.argv[1]), tensors())
