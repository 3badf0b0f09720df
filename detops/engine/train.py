# SPDX-License-Identifier: MIT
"""Iteration-based training with checkpoints that resume to the same state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from ..data.loader import build_train_loader
from ..data.seeding import mix, seed_all
from ..distributed import is_main, mean, on_main, rank, world_size
from .checkpoint import CheckpointError, load_checkpoint, load_weights, save_checkpoint
from .detect import to_device
from .metrics import Record, metrics_writer
from .solver import (
    build_average,
    build_optimizer,
    check_schedule,
    learning_rate_factor,
    set_learning_rates,
)

Report = Callable[[Record], None]
Evaluate = Callable[[nn.Module], dict[str, Any]]


class TrainingError(RuntimeError):
    """Training cannot go on."""


class Trainer:
    """Trains a model for SOLVER.MAX_ITER steps, alone or in every process of a group.

    Writes into the output folder: `checkpoint.pt` every SOLVER.CHECKPOINT_PERIOD steps and at the
    end, and `metrics.jsonl` with one line per step: step, loss and its parts, learning rate (of
    the weights), gradient norm before clipping, seconds, and the evaluation if there was one.

    SOLVER.IMS_PER_BATCH images make a step, over all processes. Each process works on its share in
    SOLVER.ACCUMULATE pieces, which need less memory. Losses are means; the mean of the pieces'
    losses is that of the whole batch if the pieces hold as many samples each (images, anchors,
    proposals: what the loss is a mean over), and nearly so otherwise. Between processes the means
    are exact, by :func:`detops.distributed.mean_count`.

    All random numbers are a function of the seed, the step and the image, so there is no state of
    generators to save: before each step the default generators are seeded.

    Args:
        model: called with (images, targets), gives a dict of losses.
        dataset: items (image float [3, h, w] in 0..1, target dict), augmented.
        cfg: the config; SOLVER, DATALOADER and DTYPE are read here.
        config_text: the same as YAML, for the checkpoints.
        names: category names, of labels 1..C in order.
        output: folder, made if missing.
        device: where to train.
        seed: of the data's order, of augmentation and of the model's random numbers.
        tensorboard: write metrics for TensorBoard too.

    Raises:
        ValueError: a value of SOLVER or DTYPE is none of those there are; names the key.
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
        tensorboard: bool = False,
    ) -> None:
        if cfg.DTYPE not in ("float32", "bfloat16"):
            raise ValueError(f"DTYPE: expected float32 or bfloat16 to train in, got {cfg.DTYPE}")
        check_schedule(cfg.SOLVER)
        self.device = torch.device(device)
        self.model = to_device(model, self.device).train()
        self.dataset, self.cfg, self.solver, self.seed = dataset, cfg, cfg.SOLVER, seed
        self.config_text, self.names = config_text, list(names)
        self.output, self.tensorboard = Path(output), tensorboard
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

    def run(self, report: Report | None = None, evaluate: Evaluate | None = None) -> None:
        """Trains from the present step to SOLVER.MAX_ITER.

        Args:
            report: called after each step with what is written to the metrics.
            evaluate: called every SOLVER.TEST_PERIOD steps with the model to detect with; what it
                gives stands under `evaluation` in the metrics.

        Raises:
            TrainingError: a loss is not finite.
            ImportError: TensorBoard is asked for and not installed.
        """
        solver = self.solver
        loader = build_train_loader(
            self.dataset,
            solver.IMS_PER_BATCH,
            solver.MAX_ITER,
            start=self.step,
            seed=self.seed,
            workers=self.cfg.DATALOADER.NUM_WORKERS,
            group_orientations=self.cfg.DATALOADER.ASPECT_RATIO_GROUPING,
            share=(rank(), world_size()),
            parts=solver.ACCUMULATE,
        )
        parallel = _parallel(self.model)
        if is_main():
            self.output.mkdir(parents=True, exist_ok=True)
        with metrics_writer(self.output, self.step, self.tensorboard) as write:
            began = time.perf_counter()
            for images, targets in loader:
                record = self._train_step(parallel, images, targets)
                record["seconds"] = round(time.perf_counter() - began, 4)
                if evaluate is not None and self._is_due(solver.TEST_PERIOD):
                    record["evaluation"] = evaluate(self.best_model)
                    self.model.train()
                write(record)
                if report is not None:
                    report(record)
                if self.step == solver.MAX_ITER or self._is_due(solver.CHECKPOINT_PERIOD):
                    self.save()
                began = time.perf_counter()

    def _is_due(self, period: int) -> bool:
        return period > 0 and self.step % period == 0

    def _train_step(
        self, parallel: nn.Module, images: list[Tensor], targets: list[dict[str, Any]]
    ) -> Record:
        seed_all(mix(self.seed, 2, self.step, rank()))
        set_learning_rates(self.optimizer, learning_rate_factor(self.solver, self.step))
        self.optimizer.zero_grad(set_to_none=True)
        parts = self.solver.ACCUMULATE
        size = len(images) // parts
        pieces = []
        for part in range(parts):
            piece = slice(part * size, (part + 1) * size)
            with _sync(parallel, part == parts - 1):
                losses = self._losses(parallel, images[piece], targets[piece])
                total = torch.stack(list(losses.values())).sum()
                (total / parts).backward()
            pieces.append(torch.stack([total.detach(), *(v.detach() for v in losses.values())]))
        # One copy for all the numbers: each would wait for the device by itself.
        values = mean(torch.stack(pieces).mean(dim=0)).tolist()
        record: Record = dict(zip(("loss", *losses), values, strict=True))
        if not all(map(math.isfinite, values)):
            told = ", ".join(f"{name} {value:.4g}" for name, value in record.items())
            raise TrainingError(
                f"step {self.step + 1}: the loss is not finite ({told}); lower SOLVER.BASE_LR "
                f"(now {self.solver.BASE_LR:g}) or set SOLVER.CLIP_GRADIENTS "
                f"(now {self.solver.CLIP_GRADIENTS:g})"
            )
        limit = self.solver.CLIP_GRADIENTS or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit)
        self.optimizer.step()
        if self.average is not None:
            self.average.update_parameters(self.model)
        self.step += 1
        rate = self.optimizer.param_groups[0]["lr"]
        return {"step": self.step, **record, "lr": rate, "grad_norm": float(norm)}

    def _losses(
        self, parallel: nn.Module, images: list[Tensor], targets: list[dict[str, Any]]
    ) -> dict[str, Tensor]:
        images = [image.to(self.device, non_blocking=True) for image in images]
        targets = [
            {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in target.items()}
            for target in targets
        ]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cfg.DTYPE == "bfloat16"):
            losses = parallel(images, targets)
        return {name: loss.float() for name, loss in losses.items()}

    def save(self) -> None:
        """Writes the checkpoint, in the main process: `model` holds the weights to detect with."""
        if not is_main():
            return
        training = {
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
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
        """Takes up the state of a checkpoint: weights, average, optimizer, step, seed.

        The main process reads it, for all.

        Args:
            path: the checkpoint; the one in the output folder by default.

        Raises:
            CheckpointError: the file is missing or damaged, or is not of this model, of these
                categories or of this kind of training.
        """
        path = self.checkpoint_path if path is None else Path(path)
        checkpoint = on_main(lambda: load_checkpoint(path))
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

    def _load_optimizer(self, state: dict[str, Any], path: Path) -> None:
        rates = [(g["initial_lr"], g["weight_decay"]) for g in self.optimizer.param_groups]
        try:
            self.optimizer.load_state_dict(state)
        except ValueError as error:
            raise CheckpointError(f"{path}: does not fit the optimizer ({error})") from error
        # The config decides, so that a resumed run can be given another rate.
        for group, (rate, decay) in zip(self.optimizer.param_groups, rates, strict=True):
            group["initial_lr"], group["weight_decay"] = rate, decay


def _parallel(model: nn.Module) -> nn.Module:
    if world_size() == 1:
        return model
    # A head without samples may leave its parameters out of the graph, in some processes only.
    # Buffers other than running statistics are constants.
    return DistributedDataParallel(
        model,
        find_unused_parameters=True,
        broadcast_buffers=any(isinstance(m, _BatchNorm) for m in model.modules()),
    )


def _sync(parallel: nn.Module, now: bool) -> AbstractContextManager:
    """Gradients travel with the last backward only."""
    if now or not isinstance(parallel, DistributedDataParallel):
        return nullcontext()
    return parallel.no_sync()
