"""Times the fine-tuning of docs/training.md: configs/tree_crowns_from_coco.yaml.

With --random, random weights replace torchvision's if the cache of torch.hub lacks them and they
cannot be downloaded. The network is the same, but its AP is then meaningless.

python benchmarks/fine_tuning.py --steps 100 --threads 2 --random
"""

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch
from torchvision.models.detection import fasterrcnn_resnet50_fpn

from detops import cli
from detops.engine.weights_torchvision import cached_file, newest_weights

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "tree_crowns_from_coco.yaml"


def cache_random_weights() -> None:
    """Stores random weights in the cache, under the file name of torchvision's."""
    torch.manual_seed(0)
    net = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None)
    file = cached_file(newest_weights("fasterrcnn_resnet50_fpn"))
    file.parent.mkdir(parents=True)
    torch.save(net.state_dict(), file)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--random", action="store_true", help="random weights for torchvision's")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        if arguments.random:
            stack.enter_context(mock.patch("torch.hub.get_dir", lambda: str(folder / "hub")))
            cache_random_weights()
        train = [
            "train",
            "--config",
            str(CONFIG),
            "--output",
            str(folder / "run"),
            "--device",
            "cpu",
        ]
        # Evaluates once after training, whose time is not part of the steps.
        overrides = ["SOLVER.MAX_ITER", str(arguments.steps), "SOLVER.TEST_PERIOD", "0"]
        status = cli.main([*train, *overrides, "SOLVER.PATIENCE", "0"])
        if status:
            raise SystemExit(status)
        results = json.loads((folder / "run" / "results.json").read_text())
    each = results["seconds_per_step"]
    weights = "random" if arguments.random else "torchvision's"
    print(
        f"{results['steps']} steps of 2 crops from {weights} weights, {arguments.threads} threads: "
        f"{results['seconds']:.0f} s, {each:.2f} s a step (median), {2 / each:.2f} images/s"
    )


if __name__ == "__main__":
    main()
