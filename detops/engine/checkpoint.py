# SPDX-License-Identifier: MIT
"""Checkpoints: dicts of tensors and plain values, written atomically, read with weights_only.

Every checkpoint holds `config` (YAML text), `names` (of the categories, labels 1..C in order) and
`model` (a state dict), which is all that detection needs. One that training can go on from holds
`training` too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Checkpoint = dict[str, Any]
NAMED_DIFFERENCES = 3


class CheckpointError(ValueError):
    """A checkpoint that is missing, damaged, or does not fit the model."""


def save_checkpoint(path: str | Path, checkpoint: Checkpoint) -> None:
    """Writes a checkpoint so that the path holds the old file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def save_weights(
    path: str | Path,
    state: Mapping[str, Tensor],
    config: str,
    names: Sequence[str],
    half: bool = False,
) -> None:
    """Writes a checkpoint for detection only.

    Args:
        path: the file.
        state: the model's state dict.
        config: the config that built the model, as YAML.
        names: category names, of labels 1..C in order.
        half: store float32 tensors as float16 where their range allows it; loading gives float32.
    """
    weights = {key: _compact(value.detach().cpu(), half) for key, value in state.items()}
    save_checkpoint(path, {"config": config, "names": list(names), "model": weights})


def _compact(value: Tensor, half: bool) -> Tensor:
    # clone: a view would be saved with the whole storage behind it.
    value = value.clone(memory_format=torch.contiguous_format)
    fits = value.numel() > 0 and bool(value.abs().amax() < torch.finfo(torch.float16).max)
    return value.half() if half and value.dtype == torch.float32 and fits else value


def read_file(path: str | Path) -> Any:
    """What torch.save has written, onto the CPU, without running any code in it.

    Raises:
        CheckpointError: the file is missing or damaged, or holds more than tensors and plain
            values.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: no such checkpoint file")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file fails in the zip reader, the unpickler or the tensor reader, each with errors
    # of its own.
    except Exception as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{path}: damaged, or not a checkpoint ({reason[:120]})") from error


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Reads a checkpoint of this package.

    Raises:
        CheckpointError: the file is missing, damaged, or not a checkpoint of this package.
    """
    checkpoint = read_file(path)
    required = {"config": str, "names": list, "model": Mapping}
    for key, kind in required.items():
        if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get(key), kind):
            raise CheckpointError(f"{path}: not a detops checkpoint: no '{key}' in it")
    return dict(checkpoint)


def load_weights(model: nn.Module, state: Mapping[str, Tensor], source: str | Path) -> None:
    """Copies a state dict into a model, casting to the model's dtypes.

    Args:
        model: takes the weights.
        state: must have exactly the model's names and shapes.
        source: where the weights come from, for messages.

    Raises:
        CheckpointError: names or shapes differ; the first differences are named.
    """
    expected = model.state_dict()
    differences = [f"lacks {key}" for key in expected if key not in state]
    differences += [f"has unknown {key}" for key in state if key not in expected]
    differences += [
        f"{key} is {list(state[key].shape)}, the model's is {list(value.shape)}"
        for key, value in expected.items()
        if key in state and state[key].shape != value.shape
    ]
    if differences:
        raise CheckpointError(f"{source}: does not fit the model: {list_some(differences)}")
    model.load_state_dict(state)


def list_some(items: Sequence[str], separator: str = "; ") -> str:
    """The first few, and how many more there are."""
    more = len(items) - NAMED_DIFFERENCES
    rest = f"{separator}and {more} more" if more > 0 else ""
    return separator.join(items[:NAMED_DIFFERENCES]) + rest
