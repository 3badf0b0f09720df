# SPDX-License-Identifier: MIT
"""Validation of the training state in a checkpoint, before any of it is used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint import Checkpoint, CheckpointError, DamagedCheckpointError

# Entries that PyTorch's optimizers store per parameter.
STATE_KEYS = {
    torch.optim.SGD: {"momentum_buffer"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
}


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Returns whether the floating-point tensors contain neither infinity nor NaN."""
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def check_training_state(checkpoint: Checkpoint, path: Path) -> None:
    """Rejects contents that training never writes.

    Raises:
        CheckpointError: the checkpoint contains only weights.
        DamagedCheckpointError: an entry is missing, of another type or not finite; the message
            names it.
    """
    if "training" not in checkpoint:
        raise CheckpointError(f"{path}: contains only weights; training cannot resume from it")
    training = checkpoint["training"]

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise DamagedCheckpointError(f"{path}: damaged: {what}")

    require(isinstance(training, Mapping), "its 'training' is not a dict")
    for key in ("step", "seed"):
        value = training.get(key)
        require(_is_count(value), f"its {key} is {_describe(value)}, not a non-negative integer")
    _require_weights(checkpoint["model"], "model", require)
    if "raw_model" in training or "averaged_steps" in training:
        _require_weights(training.get("raw_model"), "raw_model", require)
        count = training.get("averaged_steps")
        is_count = (
            isinstance(count, Tensor) and count.numel() == 1 and not count.is_floating_point()
        )
        require(is_count and int(count) >= 0, f"its averaged_steps is {_describe(count)}")
    optimizer = training.get("optimizer")
    require(isinstance(optimizer, Mapping), f"its optimizer is {_describe(optimizer)}")
    state, groups = optimizer.get("state"), optimizer.get("param_groups")
    require(isinstance(state, Mapping), f"its optimizer's state is {_describe(state)}")
    valid = isinstance(groups, list) and all(
        isinstance(g, Mapping) and isinstance(g.get("params"), list) for g in groups
    )
    require(valid, f"its optimizer's param_groups are {_describe(groups)}")
    for number, values in state.items():
        require(
            isinstance(values, Mapping), f"its optimizer's state of {number} is {_describe(values)}"
        )
        tensors = [value for value in values.values() if isinstance(value, Tensor)]
        require(all_finite(tensors), f"its optimizer's state of {number} is not finite")


def _require_weights(state: Any, name: str, require: Any) -> None:
    valid = isinstance(state, Mapping) and all(isinstance(v, Tensor) for v in state.values())
    require(valid, f"its {name} is not a dict of tensors")
    require(all_finite(state.values()), f"its {name} is not finite: training had diverged")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _describe(value: Any) -> str:
    if value is None:
        return "missing"
    return repr(value) if isinstance(value, int | float | str) else f"a {type(value).__name__}"


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, saved: Mapping[str, Any], path: Path
) -> None:
    """Restores an optimizer's state, but not its settings, which come from the config.

    Args:
        optimizer: an optimizer over the same parameters.
        saved: its `state_dict`, checked by `check_training_state`.
        path: the checkpoint, for messages.

    Raises:
        CheckpointError: the state belongs to other parameters or another kind of optimizer.
    """

    def require(condition: bool, what: str) -> None:
        if not condition:
            raise CheckpointError(f"{path}: does not fit the optimizer: {what}")

    groups = optimizer.state_dict()["param_groups"]
    sizes, saved_sizes = ([len(g["params"]) for g in gs] for gs in (groups, saved["param_groups"]))
    require(sizes == saved_sizes, f"groups of {saved_sizes} parameters, the model has {sizes}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = STATE_KEYS[type(optimizer)]
    for number, values in saved["state"].items():
        require(_is_count(number) and number < len(parameters), f"a parameter {_describe(number)}")
        require(
            values.keys() == known,
            f"{', '.join(map(str, values))} where {type(optimizer).__name__} has "
            f"{', '.join(sorted(known))} (SOLVER.OPTIMIZER)",
        )
        for key, value in values.items():
            shape = torch.Size() if key == "step" else parameters[number].shape
            # SGD without momentum stores None.
            fits = value is None if not isinstance(value, Tensor) else value.shape == shape
            require(fits, f"{key} of parameter {number} is not of shape {list(shape)}")
    optimizer.load_state_dict({"state": saved["state"], "param_groups": groups})
