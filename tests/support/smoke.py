"""Compares an installed detops with its results on the newest PyTorch: `make wheel-check`.

Compares every call of calls.py, the detections of the shipped tree-crown detector, and the losses
and weights of one training step. `python tests/support/smoke.py --store` writes the results to
compare with; run it after an intended change of results. The program tests the installed package:
its folder contains no detops.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from calls import CALLS
from tiny_training import NETWORK
from torch import Tensor

import detops
from detops.cli.options import PACKAGE, TREE_CROWNS
from detops.config import load_config
from detops.data import CocoDetection
from detops.engine import Detector
from detops.modeling import build_detection_model

RESULTS_FILE = Path(__file__).with_name("smoke_results.npz")
SAMPLES = 48  # evenly spaced elements to keep of a tensor
# Kernels sum alike on every PyTorch, but random numbers, matrix products and exp differ in the last
# digits between PyTorch versions and between processors.
TOLERANCES = {
    torch.float64: 1e-5,
    torch.float32: 1e-4,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
DETECTION_TOLERANCE, TRAINING_TOLERANCE = 2e-3, 1e-3  # for networks, with PyTorch convolutions


def sample(tensor: Tensor) -> np.ndarray:
    """Returns the sizes of a tensor and evenly spaced elements."""
    flat = tensor.detach().reshape(-1)
    positions = torch.linspace(0, max(flat.numel() - 1, 0), min(SAMPLES, flat.numel())).long()
    kind = np.float64 if tensor.dtype == torch.float64 else np.float32
    kind = kind if tensor.is_floating_point() else np.int64
    sizes = np.array([tensor.dim(), *tensor.shape], dtype=np.float64)
    values = (
        flat[positions].double().numpy() if tensor.is_floating_point() else flat[positions].numpy()
    )
    return np.concatenate([sizes, values.astype(kind)])


def results() -> dict[str, tuple[np.ndarray, float]]:
    """Returns the results by name, each with its tolerance."""
    found = {}
    for call in CALLS:
        for i, tensor in enumerate(call.results(call.tensors())):
            found[f"{call.name}: {i}"] = sample(tensor), TOLERANCES.get(tensor.dtype, 0.0)
    for name, tensor in detections().items():
        found[f"detections: {name}"] = sample(tensor), DETECTION_TOLERANCE
    for name, tensor in training_step().items():
        found[f"training step: {name}"] = sample(tensor), TRAINING_TOLERANCE
    return found


def detections() -> dict[str, Tensor]:
    """Returns the confident detections of the shipped detector in a photograph."""
    dataset = CocoDetection(TREE_CROWNS / "val.json")
    detector = Detector.from_checkpoint(TREE_CROWNS / "weights.pt", "cpu")
    found = detector.detect(dataset.image_path(0), 0.6)
    return {"boxes": found["boxes"] / 100, "scores": found["scores"]}


def training_step() -> dict[str, Tensor]:
    """Returns the losses of a small Mask R-CNN before and after a step, and an updated weight."""
    generator = torch.Generator().manual_seed(0)
    model = build_detection_model(load_config(PACKAGE / "configs" / "shapes.yaml", NETWORK)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.05)
    image = torch.rand(3, 64, 64, generator=generator)
    masks = torch.zeros(2, 64, 64, dtype=torch.bool)
    masks[0, 8:40, 8:40] = masks[1, 30:60, 20:56] = True
    boxes = torch.tensor([[8.0, 8, 40, 40], [20, 30, 56, 60]])
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    outputs = {}
    for step in ("first", "second"):
        torch.manual_seed(0)
        losses = model([image], [target])
        outputs |= {f"{step} {name}": loss for name, loss in losses.items()}
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    return outputs | {"weight": next(model.parameters())}


def difference(found: np.ndarray, stored: np.ndarray, tolerance: float) -> str:
    """Describes how a result differs from the stored one; empty if it does not."""
    sizes = slice(0, 1 + int(stored[0]))
    if found.shape != stored.shape or (found[sizes] != stored[sizes]).any():
        return f"different sizes: {found[sizes][1:]}, expected {stored[sizes][1:]}"
    close = np.isclose(found, stored, rtol=tolerance, atol=tolerance, equal_nan=True)
    if close.all():
        return ""
    different = np.flatnonzero(~close)
    largest = np.abs(found - stored)[different].max()
    return f"{len(different)} of {len(found)} differ, by up to {largest:.3g}"


def main(arguments: list[str]) -> int:
    """Compares or stores the results, and returns the exit status."""
    print(f"detops {detops.__version__} of {PACKAGE}")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {detops._C.cpu_isa()}")
    print(f"PyTorch's CUDA: {torch.version.cuda}; detops's: {detops._C.cuda_version}")
    if torch.version.cuda and (PACKAGE / "libdetops_cuda.so").exists() != bool(
        detops._C.cuda_version
    ):
        print("libdetops_cuda.so exists but does not load")
        return 1
    found = results()
    if arguments == ["--store"]:
        np.savez_compressed(RESULTS_FILE, **{name: values for name, (values, _) in found.items()})
        print(f"{RESULTS_FILE.name}: {len(found)} results, {RESULTS_FILE.stat().st_size} bytes")
        return 0
    stored = np.load(RESULTS_FILE)
    differences = {
        name: "exists in only one of the two" for name in found.keys() ^ set(stored.files)
    }
    for name in found.keys() & set(stored.files):
        differences[name] = difference(found[name][0], stored[name], found[name][1])
    for name, text in sorted(differences.items()):
        if text:
            print(f"{name}: {text}")
    failed = sum(map(bool, differences.values()))
    print(f"{len(found) - failed} of {len(found)} results match the newest PyTorch")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
