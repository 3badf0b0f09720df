# SPDX-License-Identifier: MIT
"""Iteration-based training with checkpoints that resume to the same state."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from ..data.loader import build_train_loader
from .checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from .detect import to_device
from .solver import build_average, build_optimizer, learning_rate_factor, set_learning_rates

Report = Callable[[dict[str, float]], None]


class TrainingError(RuntimeError):
    """Training cannot go on."""


class Trainer:
    """Trains a model for SOLVER.MAX_ITER steps.

    Writes into the output folder: `checkpoint.pt` every SOLVER.CHECKPOINT_PERIOD steps and at the
    end, and `metrics.jsonl` with one line per step: step, loss and its parts, learning rate (of
    the weights), gradient norm before clipping, seconds.

    Args:
        model: called with (images, targets), gives a dict of losses.
        dataset: items (image float [3, h, w] in 0..1, target dict), augmented.
        cfg: the config; SOLVER and DATALOADER are read here.
        config_text: the same as YAML, for the checkpoints.
        names: category names, of labels 1..C in order.
        output: folder, made if missing.
        device: where to train.
        seed: of the data's order and augmentation. The model's own random numbers come from
            torch's default generators.
    """

    def __init__(
        self,
        model: nn.Module,
        dataset: Dataset,
        cfg: Any,
        config_text: str,
        names: Sequence[str],
        output: str | Path,
        device: str | torch.device = "cpu",
        seed: int = 0,
    ) -> None:
        self.device = torch.device(device)
        self.model = to_device(model, self.device).train()
        self.dataset, self.cfg, self.solver, self.seed = dataset, cfg, cfg.SOLVER, seed
        self.config_text, self.names = config_text, list(names)
        self.output = Path(output)
        self.optimizer = build_optimizer(self.model, self.solver)
        self.average = build_average(self.model, self.solver.EMA_DECAY)
        self.step = 0

    @property
    def checkpoint_path(self) -> Path:
        """Where the checkpoint lies."""
        return self.output / "checkpoint.pt"

    @property
    def best_model(self) -> nn.Module:
        """The averaged model, or the model itself without averaging."""
        return self.model if self.average is None else self.average.module

    def run(self, report: Report | None = None) -> None:
        """Trains from the present step to SOLVER.MAX_ITER.

        Args:
            report: called after each step with what is written to the metrics.

        Raises:
            TrainingError: a loss is not finite.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        loader = build_train_loader(
            self.dataset,
            self.solver.IMS_PER_BATCH,
            self.solver.MAX_ITER,
            start=self.step,
            seed=self.seed,
            workers=self.cfg.DATALOADER.NUM_WORKERS,
        )
        metrics_path = self.output / "metrics.jsonl"
        _drop_lines_after(metrics_path, self.step)
        # Line buffered, so that a killed run leaves the lines of the steps it made.
        with open(metrics_path, "a", encoding="utf-8", buffering=1) as metrics:
            began = time.perf_counter()
            for images, targets in loader:
                record = self._train_step(images, targets)
                now = time.perf_counter()
                record["seconds"] = round(now - began, 4)
                began = now
                metrics.write(json.dumps(record) + "\n")
                if report is not None:
                    report(record)
                period = self.solver.CHECKPOINT_PERIOD
                if self.step == self.solver.MAX_ITER or (period > 0 and self.step % period == 0):
                    self.save()

    def _train_step(self, images: list[Tensor], targets: list[dict]) -> dict[str, float]:
        factor = learning_rate_factor(self.solver, self.step)
        set_learning_rates(self.optimizer, factor)
        images = [image.to(self.device, non_blocking=True) for image in images]
        targets = [
            {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in target.items()}
            for target in targets
        ]
        losses = self.model(images, targets)
        total = sum(losses.values())
        # One copy for all the numbers: each would wait for the device by itself.
        values = torch.stack([total.detach(), *(v.detach() for v in losses.values())]).tolist()
        record = dict(zip(("loss", *losses), values, strict=True))
        if not all(map(torch.isfinite, torch.tensor(values))):
            parts = ", ".join(f"{name} {value:.4g}" for name, value in record.items())
            raise TrainingError(
                f"step {self.step + 1}: the loss is not finite ({parts}); lower SOLVER.BASE_LR "
                f"(now {self.solver.BASE_LR:g}) or set SOLVER.CLIP_GRADIENTS "
                f"(now {self.solver.CLIP_GRADIENTS:g})"
            )
        self.optimizer.zero_grad(set_to_none=True)
        total.backward()
        limit = self.solver.CLIP_GRADIENTS or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        rate = self.optimizer.param_groups[0]["lr"]
        return {"step": self.step, **record, "lr": rate, "grad_norm": float(norm)}

    def save(self) -> None:
        """Writes the checkpoint: `model` holds the weights to detect with."""
        training = {
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "random": torch.random.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],
            "seed": self.seed,
        }
        if self.average is not None:
            training["raw_model"] = self.model.state_dict()
            training["averaged_steps"] = self.average.n_averaged
        save_checkpoint(
            self.checkpoint_path,
            {
                "config": self.config_text,
                "names": self.names,
                "model": self.best_model.state_dict(),
                "training": training,
            },
        )

    def resume(self, path: str | Path | None = None) -> None:
        """Takes up the state of a checkpoint: weights, average, optimizer, step, random numbers.

        Args:
            path: the checkpoint; the one in the output folder by default.

        Raises:
            CheckpointError: the file is missing or damaged, or is not of this model, of these
                categories or of this kind of training.
        """
        path = self.checkpoint_path if path is None else Path(path)
        checkpoint = load_checkpoint(path)
        training = checkpoint.get("training")
        if training is None:
            raise CheckpointError(f"{path}: holds weights only; training cannot resume from it")
        if checkpoint["names"] != self.names:
            raise CheckpointError(
                f"{path}: was trained on categories {checkpoint['names']}, "
                f"the data has {self.names}"
            )
        if ("raw_model" in training) != (self.average is not None):
            raise CheckpointError(
                f"{path}: was trained {'with' if 'raw_model' in training else 'without'} "
                f"SOLVER.EMA_DECAY, which is now {self.solver.EMA_DECAY:g}"
            )
        load_weights(self.best_model, checkpoint["model"], path)
        if self.average is not None:
            load_weights(self.model, training["raw_model"], path)
            self.average.n_averaged.copy_(training["averaged_steps"])
        self._load_optimizer(training["optimizer"], path)
        self.step, self.seed = training["step"], training["seed"]
        torch.random.set_rng_state(training["random"])
        if self.device.type == "cuda" and len(training["random_cuda"]) == torch.cuda.device_count():
            torch.cuda.set_rng_state_all(training["random_cuda"])

    def _load_optimizer(self, state: dict[str, Any], path: Path) -> None:
        rates = [(g["initial_lr"], g["weight_decay"]) for g in self.optimizer.param_groups]
        try:
            self.optimizer.load_state_dict(state)
        except ValueError as error:
            raise CheckpointError(f"{path}: does not fit the optimizer ({error})") from error
        # The config decides, so that a resumed run can be given another rate.
        for group, (rate, decay) in zip(self.optimizer.param_groups, rates, strict=True):
            group["initial_lr"], group["weight_decay"] = rate, decay


def _drop_lines_after(path: Path, step: int) -> None:
    """Removes what a run wrote after its last checkpoint, before those steps are made again."""
    if not path.is_file():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError):
            continue
    path.write_text("".join(kept), encoding="utf-8")
