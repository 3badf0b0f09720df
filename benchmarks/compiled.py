"""Compares detectors under torch.compile with eager mode: inference and a training step.

python benchmarks/compiled.py mask_rcnn_R_50_FPN_1x --size 800 1333

Times are median CPU seconds of one thread; both run in turn, and the first run of each is ignored.
Weights are random; the image is noise with eight objects. "Frozen" is inductor with its option
`freezing`, which treats the weights as constants.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor

import detops
from detops.config import load_config
from detops.modeling import build_detection_model

CONFIGS = Path(detops.__file__).parent / "configs"
OBJECTS = 8


def seconds(runs: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the median CPU time of each callable."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds + 1):
        for name, run in runs.items():
            began = time.process_time()
            run()
            times[name].append(time.process_time() - began)
    return {name: statistics.median(t[1:]) for name, t in times.items()}


def inference(model: torch.nn.Module, image: torch.Tensor, rounds: int) -> dict[str, float]:
    """Times the detector in eager mode, compiled, and compiled with frozen weights."""

    def run(call: Callable[..., Any]) -> Callable[[], Any]:
        return torch.no_grad()(lambda: call([image]))

    model.eval()
    runs = {"eager": run(model)}
    for name, freezing in (("compiled", False), ("frozen", True)):
        with inductor.patch(freezing=freezing):
            runs[name] = run(torch.compile(model, fullgraph=True, options={"freezing": freezing}))
            runs[name]()
    return seconds(runs, rounds)


def training(model: torch.nn.Module, image: torch.Tensor, rounds: int) -> dict[str, float]:
    """Times a forward and a backward pass."""
    side = min(image.shape[1:])
    corners, sizes = (
        torch.rand(OBJECTS, 2) * 0.6 * side,
        (0.1 + 0.3 * torch.rand(OBJECTS, 2)) * side,
    )
    target = {
        "boxes": torch.cat([corners, corners + sizes], 1),
        "labels": torch.ones(OBJECTS, dtype=torch.long),
        "masks": torch.ones(OBJECTS, *image.shape[1:], dtype=torch.bool),
        "keypoints": torch.cat(
            [corners[:, None] + sizes[:, None] / 2, torch.ones(OBJECTS, 1, 1)], 2
        )
        .expand(-1, 17, -1)
        .clone(),
        "seed": 0,
    }

    def run(call: Callable[..., Any]) -> Callable[[], Any]:
        def step() -> None:
            model.zero_grad(set_to_none=True)
            sum(call([image], [target]).values()).backward()

        return step

    model.train()
    runs = {"eager": run(model), "compiled": run(torch.compile(model))}
    runs["compiled"]()
    return seconds(runs, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("configs", nargs="+", help="names of shipped configs")
    parser.add_argument("--size", nargs=2, type=int, default=(800, 1333), help="height and width")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("inference", "training"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    image = torch.rand(3, *arguments.size)
    print("| config | pass | eager, s | eager / compiled | eager / frozen |\n|---|---|---|---|---|")
    for name in arguments.configs:
        sides = ["INPUT.MIN_SIZE_TEST", 0, "INPUT.MIN_SIZE_TRAIN", (min(arguments.size),)]
        sides += ["INPUT.MAX_SIZE_TRAIN", max(arguments.size)]
        torch.manual_seed(0)
        model = build_detection_model(load_config(CONFIGS / f"{name}.yaml", sides))
        model.to(memory_format=torch.channels_last)
        for measure in (inference, training):
            if arguments.only in (None, measure.__name__):
                torch._dynamo.reset()
                eager, *others = measure(model, image, arguments.rounds).values()
                ratios = [f"{eager / other:.2f}" for other in others] + ["-"] * (2 - len(others))
                row = [f"`{name}`", measure.__name__, f"{eager:.2f}", *ratios]
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
