# SPDX-License-Identifier: MIT
"""Optimizer, learning-rate schedule and weight averaging, configured by SOLVER."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

WARMUP_METHODS = ("linear", "constant")
Tensors = tuple[Tensor, ...] | list[Tensor]


def build_optimizer(model: nn.Module, solver: Any) -> torch.optim.Optimizer:
    """Builds an optimizer over the trainable parameters, with biases in a separate group.

    Reads SOLVER.OPTIMIZER (SGD or ADAMW), BASE_LR, BIAS_LR_FACTOR, WEIGHT_DECAY, WEIGHT_DECAY_BIAS
    and, for SGD, MOMENTUM.
    """
    weights: list[nn.Parameter] = []
    biases: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (biases if name.endswith("bias") else weights).append(parameter)
    groups = [
        {"params": weights, "lr": solver.BASE_LR, "weight_decay": solver.WEIGHT_DECAY},
        {
            "params": biases,
            "lr": solver.BASE_LR * solver.BIAS_LR_FACTOR,
            "weight_decay": solver.WEIGHT_DECAY_BIAS,
        },
    ]
    groups = [group | {"initial_lr": group["lr"]} for group in groups if group["params"]]
    if solver.OPTIMIZER == "SGD":
        return torch.optim.SGD(groups, momentum=solver.MOMENTUM)
    if solver.OPTIMIZER == "ADAMW":
        return torch.optim.AdamW(groups)
    raise ValueError(f"SOLVER.OPTIMIZER: expected SGD or ADAMW, got {solver.OPTIMIZER}")


def check_schedule(solver: Any) -> None:
    """Rejects schedule settings that `learning_rate_factor` would misinterpret.

    Raises:
        ValueError: the message names the key, the expected values and the actual one.
    """
    for key, known in (("SCHEDULE", ("MULTISTEP", "COSINE")), ("WARMUP_METHOD", WARMUP_METHODS)):
        if getattr(solver, key) not in known:
            raise ValueError(
                f"SOLVER.{key}: expected {' or '.join(known)}, got {getattr(solver, key)}"
            )
    if list(solver.STEPS) != sorted(solver.STEPS):
        raise ValueError(f"SOLVER.STEPS: expected ascending steps, got {list(solver.STEPS)}")


def learning_rate_factor(solver: Any, step: int) -> float:
    """Returns the factor on the learning rates at a step (counted from 0).

    It depends only on the step, so the schedule has no state to save. Reads SOLVER.SCHEDULE
    (MULTISTEP or COSINE), MAX_ITER, STEPS, GAMMA, WARMUP_ITERS, WARMUP_FACTOR and WARMUP_METHOD
    (linear or constant).
    """
    factor = 1.0
    if step < solver.WARMUP_ITERS:
        progress = step / solver.WARMUP_ITERS if solver.WARMUP_METHOD == "linear" else 0.0
        factor = solver.WARMUP_FACTOR * (1 - progress) + progress
    if solver.SCHEDULE == "MULTISTEP":
        return factor * solver.GAMMA ** bisect_right(list(solver.STEPS), step)
    if solver.SCHEDULE == "COSINE":
        rest = max(1, solver.MAX_ITER - solver.WARMUP_ITERS)
        progress = min(1.0, max(0, step - solver.WARMUP_ITERS) / rest)
        return factor * 0.5 * (1 + math.cos(math.pi * progress))
    raise ValueError(f"SOLVER.SCHEDULE: expected MULTISTEP or COSINE, got {solver.SCHEDULE}")


def set_learning_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Sets every group's rate to its initial rate times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor


def build_average(model: nn.Module, decay: float) -> AveragedModel | None:
    """Builds an exponential moving average of a model's weights; returns None for decay 0.

    The decay rises over the first steps, min(decay, (1 + n) / (10 + n)), so that the average soon
    forgets the random initial weights.
    """
    if decay == 0:
        return None
    if not 0 < decay < 1:
        raise ValueError(f"SOLVER.EMA_DECAY: expected a value in [0, 1), got {decay}")

    def update(averaged: Tensors, current: Tensors, count: Tensor | int) -> None:
        done = int(count)
        weight = 1 - min(decay, (1 + done) / (10 + done))
        for target, source in zip(averaged, current, strict=True):
            target.lerp_(source, weight)

    average = AveragedModel(model, multi_avg_fn=torch.no_grad()(update))
    return average.requires_grad_(False)
