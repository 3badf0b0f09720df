# SPDX-License-Identifier: MIT
"""Data-parallel training: one model per process, with gradients averaged over all."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ..distributed import world_size


def in_parallel(model: nn.Module) -> nn.Module:
    """Wraps a model for training in all processes; a single process gets the model itself."""
    if world_size() == 1:
        return model
    # A head without samples may leave its parameters out of the graph, in some processes only.
    # Buffers other than running statistics are constant and need no broadcast.
    return DistributedDataParallel(
        model,
        find_unused_parameters=True,
        broadcast_buffers=any(isinstance(m, _BatchNorm) for m in model.modules()),
    )


def gradient_sync(parallel: nn.Module, enabled: bool) -> AbstractContextManager:
    """Returns a context for one of several backward passes; only the last one syncs gradients."""
    if enabled or not isinstance(parallel, DistributedDataParallel):
        return nullcontext()
    return parallel.no_sync()
