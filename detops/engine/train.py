# SPDX-License-Identifier: MIT
"""Iteration-based training with checkpoints that resume to the same state."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import Dataset

from ..data.loader import build_train_loader
from ..data.seeding import mix, seed_all
from ..distributed import is_main, maximum, mean, on_main, rank, world_size
from .checkpoint import CheckpointError, load_checkpoint, load_weights, writing
from .data_failure import batches, data_failure
from .detect import to_device
from .metrics import Record, metrics_writer
from .parallel import gradient_sync, in_parallel
from .run_folder import RunFolder
from .solver import (
    build_average,
    build_optimizer,
    check_schedule,
    learning_rate_factor,
    set_learning_rates,
)
from .stop import ignore_ctrl_c
from .training_state import all_finite, check_training_state, load_optimizer_state

MAX_SKIPPED = 10
Report = Callable[[Record], None]
Evaluate = Callable[[nn.Module], dict[str, Any]]


class TrainingError(RuntimeError):
    """Training cannot continue."""


class Trainer:
    """Trains a model for SOLVER.MAX_ITER steps, alone or in every process of a group.

    Writes to the output folder: a checkpoint every SOLVER.CHECKPOINT_PERIOD steps and at the end
    (see :class:`RunFolder`), and `metrics.jsonl` with one line per step: step, loss and its parts,
    learning rate (of the weights), gradient norm before clipping, seconds, the evaluation if there
    was one, and `skipped` if the update was skipped.

    A step uses SOLVER.IMS_PER_BATCH images over all processes. Each process splits its part into
    SOLVER.ACCUMULATE pieces, which need less memory. Losses are means. The mean over the pieces
    equals the loss of the whole batch if all pieces have the same number of samples (images,
    anchors, proposals: whatever the loss is averaged over), and nearly so otherwise. Between
    processes the means are exact, by :func:`detops.distributed.mean_count`.

    All random numbers are a function of the seed, the step and the image. The default generators
    are seeded before each step, so there is no generator state to save.

    Args:
        model: called with (images, targets); returns a dict of losses.
        dataset: items (image float [3, h, w] in 0..1, target dict), augmented.
        cfg: the config; SOLVER, DATALOADER and DTYPE are read here.
        config_text: the config as YAML, for the checkpoints.
        names: category names of labels 1..C, in order.
        output: output folder, created if missing.
        device: device to train on.
        seed: seed of the data's order, of augmentation and of the model's random numbers.
        tensorboard: also write metrics for TensorBoard.

    Attributes:
        step: number of steps done.
        skipped: number of updates skipped since the start or the last resume.
        skipped_in_a_row: number of updates skipped in a row, up to the last step.

    Raises:
        ValueError: a value of SOLVER or DTYPE is unknown; the message names the key.

    Example:
        >>> cfg = detops.config.load_config(None, ["SOLVER.MAX_ITER", 1, "SOLVER.IMS_PER_BATCH", 1])
        >>> class Model(torch.nn.Linear):
        ...     def forward(self, images, targets):
        ...         return {"loss": super().forward(images[0]).sum()}
        >>> data = [(torch.rand(3, 8, 8), {"boxes": torch.zeros(0, 4)})]
        >>> trainer = Trainer(Model(8, 1), data, cfg, "", ["tree"], "run")
        >>> trainer.step
        0
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
        self.folder, self.tensorboard = RunFolder(output), tensorboard
        self.optimizer = build_optimizer(self.model, self.solver)
        self.average = build_average(self.model, self.solver.EMA_DECAY)
        # Batch norm statistics, which a forward pass modifies.
        norms = [m for m in self.model.modules() if isinstance(m, _BatchNorm)]
        self._statistics = [value for norm in norms for value in norm.buffers()]
        self.step = self.skipped = self.skipped_in_a_row = 0
        self._unsaved = False

    @property
    def output(self) -> Path:
        """The output folder."""
        return self.folder.path

    @property
    def checkpoint_path(self) -> Path:
        """Path of the newest checkpoint."""
        return self.folder.newest

    @property
    def best_model(self) -> nn.Module:
        """The averaged model, or the model itself without averaging."""
        return self.model if self.average is None else self.average.module

    def run(
        self,
        report: Report | None = None,
        evaluate: Evaluate | None = None,
        should_stop: Callable[[], object] = bool,
        should_end: Callable[[], object] = bool,
    ) -> bool:
        """Trains from the current step to SOLVER.MAX_ITER.

        If a loss or the gradient is not finite, the update is skipped: weights, statistics, average
        and optimizer stay as they are. Training ends after `MAX_SKIPPED` skipped updates in a row.

        Args:
            report: called after each step with its metrics record.
            evaluate: called every SOLVER.TEST_PERIOD steps with the model to detect with; its
                result is stored under `evaluation` in the metrics.
            should_stop: called once per step. If it returns true in any process, all of them stop
                after that step, with a checkpoint.
            should_end: called after an evaluation, with the same result in every process. If it
                returns true, this step is the last, as if SOLVER.MAX_ITER were reached.

        Returns:
            True if training reached its end, False if it was stopped.

        Raises:
            TrainingError: training diverges, a data worker has died, or an image cannot be read.
            OutputError: a file cannot be written.
            ImportError: TensorBoard is requested but not installed.
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
        loader.worker_init_fn = ignore_ctrl_c
        parallel = in_parallel(self.model)
        if is_main():
            with writing(self.output):
                self.output.mkdir(parents=True, exist_ok=True)
        with metrics_writer(self.output, self.step, self.tensorboard) as write:
            began = time.perf_counter()
            for images, targets in batches(loader, partial(self._handle_data_failure, should_stop)):
                record, stopping = self._train_step(parallel, images, targets, should_stop)
                record["seconds"] = round(time.perf_counter() - began, 4)
                ending = False
                if evaluate is not None and self._is_due(solver.TEST_PERIOD):
                    record["evaluation"] = evaluate(self.best_model)
                    self.model.train()
                    ending = bool(should_end())
                write(record)
                if report is not None:
                    report(record)
                self._check_divergence([key for key, value in record.items() if value is None])
                self._unsaved |= self._is_due(solver.CHECKPOINT_PERIOD)
                # While updates are skipped, the current weights may have diverged.
                due = (self._unsaved or stopping) and not self.skipped_in_a_row
                if due or ending or self.step == solver.MAX_ITER:
                    self.save()
                if stopping or ending:
                    return not stopping
                began = time.perf_counter()
        # Before the last step, the data ends only if the workers were stopped as well.
        return self.step >= solver.MAX_ITER

    def _is_due(self, period: int) -> bool:
        return period > 0 and self.step % period == 0

    def _train_step(
        self,
        parallel: nn.Module,
        images: list[Tensor],
        targets: list[dict[str, Any]],
        should_stop: Callable[[], object],
    ) -> tuple[Record, bool]:
        """Runs one step; returns its metrics record and whether any process requests a stop."""
        seed_all(mix(self.seed, 2, self.step, rank()))
        set_learning_rates(self.optimizer, learning_rate_factor(self.solver, self.step))
        self.optimizer.zero_grad(set_to_none=True)
        statistics = [value.clone() for value in self._statistics]
        parts = self.solver.ACCUMULATE
        size = len(images) // parts
        pieces = []
        for part in range(parts):
            piece = slice(part * size, (part + 1) * size)
            with gradient_sync(parallel, part == parts - 1):
                losses = self._losses(parallel, images[piece], targets[piece])
                total = torch.stack(list(losses.values())).sum()
                (total / parts).backward()
            pieces.append(torch.stack([total.detach(), *(v.detach() for v in losses.values())]))
        limit = self.solver.CLIP_GRADIENTS or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit).to(pieces[0])
        # Copy all values to the host at once, because each copy synchronizes with the device.
        # Averaged over the processes, they lead to the same decision everywhere.
        flag = norm.new_full((), float(bool(should_stop())))
        packed = torch.cat([torch.stack(pieces).mean(dim=0), torch.stack([norm, flag])])
        *values, stopping = mean(packed).tolist()
        finite = all(map(math.isfinite, values))
        if finite:
            self.optimizer.step()
            if self.average is not None:
                self.average.update_parameters(self.model)
            self.skipped_in_a_row = 0
        else:
            for value, before in zip(self._statistics, statistics, strict=True):
                value.copy_(before)
            self.skipped_in_a_row += 1
            self.skipped += 1
        self.step += 1
        # JSON cannot represent NaN and infinity.
        logged = [value if math.isfinite(value) else None for value in values]
        record: Record = {"step": self.step, **dict(zip(("loss", *losses), logged, strict=False))}
        record |= {"lr": self.optimizer.param_groups[0]["lr"], "grad_norm": logged[-1]}
        return record if finite else record | {"skipped": True}, stopping > 0

    def _check_divergence(self, not_finite: list[str]) -> None:
        """Raises TrainingError if weights are not finite, or after too many skipped updates."""
        if not self.skipped_in_a_row:
            return
        finite = all_finite(self._state())
        # The processes can disagree, for example on batch norm statistics.
        weights_diverged = bool(maximum(torch.tensor(float(not finite), device=self.device)))
        if not weights_diverged and self.skipped_in_a_row < MAX_SKIPPED:
            return
        # All these losses are of the weights that the last update produced.
        first_suspect = self.step - self.skipped_in_a_row
        moved = on_main(lambda: self.folder.set_aside(first_suspect))
        remaining = on_main(self.folder.checkpoints)
        reason = f"{', '.join(not_finite)} not finite at {self.skipped_in_a_row} steps in a row"
        weights_note = ", the weights are not finite" if weights_diverged else ""
        moved_note = f"; {moved[0]} has diverged and is no longer used" if moved else ""
        advice = f"continue from {remaining[0]} with --resume and" if remaining else "restart with"
        solver = self.solver
        raise TrainingError(
            f"step {self.step}: training has diverged: {reason}{weights_note}{moved_note}; "
            f"{advice} a lower SOLVER.BASE_LR (now {solver.BASE_LR:g}), more SOLVER.WARMUP_ITERS "
            f"(now {solver.WARMUP_ITERS}) or a limit in SOLVER.CLIP_GRADIENTS (now "
            f"{solver.CLIP_GRADIENTS:g}, 0 is none)"
        )

    def _state(self) -> list[Tensor]:
        models = [self.model] if self.average is None else [self.model, self.average]
        return [value for model in models for value in model.state_dict().values()]

    def _handle_data_failure(
        self, should_stop: Callable[[], object], error: Exception
    ) -> Exception | None:
        """Saves the steps before the data failed; returns the error to raise, or None to stop."""
        reason = data_failure(error, self.cfg.DATALOADER.NUM_WORKERS)
        if reason is None:
            return error
        saved = ""
        if is_main() and self.step > 0 and not self.skipped_in_a_row:
            self.save()
            saved = f"; {self.folder.numbered(self.step)} is saved, --resume continues from it"
        # SIGTERM is often sent to all processes of a job, and kills data workers.
        if should_stop() and world_size() == 1:
            return None
        return TrainingError(f"step {self.step + 1}: {reason}{saved}")

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
        """Writes a checkpoint in the main process; `model` contains the weights to detect with.

        Raises:
            TrainingError: the weights are not finite; existing checkpoints are kept.
            OutputError: the checkpoint cannot be written.
        """
        self._unsaved = False
        if not is_main():
            return
        if not all_finite(self._state()):
            raise TrainingError(
                f"step {self.step}: training has diverged: the weights are not finite and are not "
                f"saved; lower SOLVER.BASE_LR (now {self.solver.BASE_LR:g})"
            )
        training = {
            "step": self.step,
            "optimizer": self.optimizer.state_dict(),
            "seed": self.seed,
        }
        if self.average is not None:
            training["raw_model"] = self.model.state_dict()
            training["averaged_steps"] = self.average.n_averaged
        self.folder.save(
            self.step,
            {
                "config": self.config_text,
                "names": self.names,
                "model": self.best_model.state_dict(),
                "training": training,
            },
        )

    def resume(self, path: str | Path | None = None, tell: Callable[[str], None] = warn) -> None:
        """Restores a checkpoint: weights, average, optimizer, step, seed.

        The main process reads it for all processes.

        Args:
            path: the checkpoint; by default the newest undamaged one in the output folder.
            tell: called with one line for each damaged checkpoint that is skipped.

        Raises:
            CheckpointError: the file is missing or damaged, or belongs to another model, other
                categories or another kind of training.
        """
        path, checkpoint = on_main(lambda: self._read(path, tell))
        training = checkpoint["training"]
        if checkpoint["names"] != self.names:
            raise CheckpointError(
                f"{path}: was trained on categories {checkpoint['names']}, "
                f"the data has {self.names}"
            )
        if training["step"] > self.solver.MAX_ITER:
            raise CheckpointError(
                f"{path}: step {training['step']} is above SOLVER.MAX_ITER {self.solver.MAX_ITER}"
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
        load_optimizer_state(self.optimizer, training["optimizer"], path)
        self.step, self.seed = training["step"], training["seed"]
        if is_main() and path == self.folder.newest and not path.is_symlink():
            self.folder.number(self.step)

    def _read(self, path: str | Path | None, tell: Callable[[str], None]) -> tuple[Path, Any]:
        if path is None:
            return self.folder.newest_sound(check_training_state, tell)
        checkpoint = load_checkpoint(path)
        check_training_state(checkpoint, Path(path))
        return Path(path), checkpoint
